"""A Kubernetes cluster on this machine, of real programs and without a container engine or a registry.

Everything runs in one network namespace of its own, so that nothing is changed on the machine's interfaces:
etcd, the control plane, kube-proxy, and for each node a containerd and a kubelet. It needs root and Debian.
"""
