// Command promql evaluates PromQL on scraped pages with Prometheus' own engine, and checks rule files with its own
// parser. The chart's tests feed it: a Prometheus server would need a cluster's worth of configuration to say the same.
//
//	promql < request.json > answer.json
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math"
	"os"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
)

// Page is what a target answered at a moment; its labels are the target's, as relabelling would leave them.
type Page struct {
	Seconds float64           `json:"seconds"`
	Labels  map[string]string `json:"labels"`
	Text    string            `json:"text"`
}

// Query is an expression and the moment at which it is evaluated.
type Query struct {
	Expression string  `json:"expression"`
	Seconds    float64 `json:"seconds"`
}

// Request is what standard input holds.
type Request struct {
	Rules   string  `json:"rules"`
	Pages   []Page  `json:"pages"`
	Queries []Query `json:"queries"`
}

// Sample is one element of a result. Infinity and NaN have no number in JSON, so the value is text.
type Sample struct {
	Labels map[string]string `json:"labels"`
	Value  string            `json:"value"`
}

// Result is what a query came to.
type Result struct {
	Error   string   `json:"error"`
	Samples []Sample `json:"samples"`
}

// Answer is what standard output gets.
type Answer struct {
	RuleErrors []string `json:"ruleErrors"`
	Results    []Result `json:"results"`
}

func main() {
	log.SetFlags(0)
	var request Request
	if err := json.NewDecoder(os.Stdin).Decode(&request); err != nil {
		log.Fatal(err)
	}
	answer, err := answer(request)
	if err != nil {
		log.Fatal(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(answer); err != nil {
		log.Fatal(err)
	}
}

func answer(request Request) (Answer, error) {
	reader := parser.NewParser(parser.Options{})
	found := Answer{RuleErrors: []string{}, Results: []Result{}}
	if request.Rules != "" {
		_, problems := rulefmt.Parse([]byte(request.Rules), false, model.UTF8Validation, reader, nil)
		for _, problem := range problems {
			found.RuleErrors = append(found.RuleErrors, problem.Error())
		}
	}
	folder, err := os.MkdirTemp("", "promql-")
	if err != nil {
		return found, err
	}
	defer os.RemoveAll(folder)
	database, err := tsdb.Open(folder, nil, nil, tsdb.DefaultOptions(), nil)
	if err != nil {
		return found, err
	}
	defer database.Close()
	for _, page := range request.Pages {
		if err := add(database, page); err != nil {
			return found, err
		}
	}
	engine := promql.NewEngine(promql.EngineOpts{
		MaxSamples: 10_000_000, Timeout: time.Minute, LookbackDelta: 5 * time.Minute, Parser: reader,
	})
	for _, query := range request.Queries {
		found.Results = append(found.Results, evaluate(engine, database, query))
	}
	return found, nil
}

// add appends a page's samples, as a scrape with honorLabels would: where a target's label meets a sample's own of the
// same name, the sample's stays.
func add(database *tsdb.DB, page Page) error {
	names := labels.NewSymbolTable()
	lines, err := textparse.New([]byte(page.Text), "text/plain", names, textparse.ParserOptions{})
	if err != nil {
		return err
	}
	into := database.Appender(context.Background())
	for {
		entry, err := lines.Next()
		if errors.Is(err, io.EOF) {
			return into.Commit()
		}
		if err != nil {
			return err
		}
		if entry != textparse.EntrySeries {
			continue
		}
		_, _, value := lines.Series()
		var own labels.Labels
		lines.Labels(&own)
		built := labels.NewBuilder(labels.FromMap(page.Labels))
		own.Range(func(label labels.Label) { built.Set(label.Name, label.Value) })
		if _, err := into.Append(storage.SeriesRef(0), built.Labels(), int64(page.Seconds*1e3), value); err != nil {
			return fmt.Errorf("%s: %w", built.Labels(), err)
		}
	}
}

func evaluate(engine *promql.Engine, database *tsdb.DB, query Query) Result {
	found := Result{Samples: []Sample{}}
	moment := time.UnixMilli(int64(query.Seconds * 1e3))
	prepared, err := engine.NewInstantQuery(context.Background(), database, nil, query.Expression, moment)
	if err != nil {
		found.Error = err.Error()
		return found
	}
	defer prepared.Close()
	result := prepared.Exec(context.Background())
	if result.Err != nil {
		found.Error = result.Err.Error()
		return found
	}
	switch value := result.Value.(type) {
	case promql.Vector:
		for _, sample := range value {
			found.Samples = append(found.Samples, Sample{sample.Metric.Map(), text(sample.F)})
		}
	case promql.Scalar:
		found.Samples = append(found.Samples, Sample{map[string]string{}, text(value.V)})
	default:
		found.Error = fmt.Sprintf("a %s is neither vector nor scalar", result.Value.Type())
	}
	return found
}

func text(value float64) string {
	if math.Trunc(value) == value && math.Abs(value) < 1e15 {
		return fmt.Sprintf("%.0f", value)
	}
	return fmt.Sprintf("%g", value)
}
