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
	"github.com/prometheus/prometheus/model/value"
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

// Request is what standard input holds; pages are in the order of time.
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
	shown := map[string]series{}
	for _, page := range request.Pages {
		target := labels.FromMap(page.Labels).String()
		if shown[target], err = add(database, page, shown[target]); err != nil {
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

// series are those of one page, by their text.
type series map[string]labels.Labels

// add appends a page's samples, as a scrape with honorLabels would: where a target's label meets a sample's own of the
// same name, the sample's stays. Series that were on the target's last page and are not on this one end here. It
// returns those that are.
func add(database *tsdb.DB, page Page, last series) (series, error) {
	names := labels.NewSymbolTable()
	lines, err := textparse.New([]byte(page.Text), "text/plain", names, textparse.ParserOptions{})
	if err != nil {
		return nil, err
	}
	into, found, moment := database.Appender(context.Background()), series{}, int64(page.Seconds*1e3)
	for {
		entry, err := lines.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if entry != textparse.EntrySeries {
			continue
		}
		_, _, sample := lines.Series()
		var own labels.Labels
		lines.Labels(&own)
		builder := labels.NewBuilder(labels.FromMap(page.Labels))
		own.Range(func(label labels.Label) { builder.Set(label.Name, label.Value) })
		whole := builder.Labels()
		found[whole.String()] = whole
		if _, err := into.Append(storage.SeriesRef(0), whole, moment, sample); err != nil {
			return nil, fmt.Errorf("%s: %w", whole, err)
		}
	}
	for name, whole := range last {
		if _, there := found[name]; !there {
			if _, err := into.Append(storage.SeriesRef(0), whole, moment, math.Float64frombits(value.StaleNaN)); err != nil {
				return nil, fmt.Errorf("%s: %w", whole, err)
			}
		}
	}
	return found, into.Commit()
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
	switch came := result.Value.(type) {
	case promql.Vector:
		for _, sample := range came {
			found.Samples = append(found.Samples, Sample{sample.Metric.Map(), text(sample.F)})
		}
	case promql.Scalar:
		found.Samples = append(found.Samples, Sample{map[string]string{}, text(came.V)})
	default:
		found.Error = fmt.Sprintf("a %s is neither vector nor scalar", result.Value.Type())
	}
	return found
}

func text(number float64) string {
	if math.Trunc(number) == number && math.Abs(number) < 1e15 {
		return fmt.Sprintf("%.0f", number)
	}
	return fmt.Sprintf("%g", number)
}
