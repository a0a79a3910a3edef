package main

import (
	"bufio"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// results holds the values of each benchmark and unit, one for each run.
type results map[string]map[string][]float64

// processors is the suffix that package testing adds to the name of a benchmark.
var processors = regexp.MustCompile(`-[0-9]+$`)

// readResults parses lines of the form "BenchmarkName-2  1000  8123 ns/op  7000 p50-ns". Other lines are ignored.
func readResults(in io.Reader) (results, error) {
	out := results{}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || len(fields)%2 != 0 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		if _, err := strconv.ParseUint(fields[1], 10, 64); err != nil {
			continue
		}
		name := processors.ReplaceAllString(strings.TrimPrefix(fields[0], "Benchmark"), "")
		if out[name] == nil {
			out[name] = map[string][]float64{}
		}
		for i := 2; i < len(fields); i += 2 {
			value, err := strconv.ParseFloat(fields[i], 64)
			if err != nil {
				return nil, fmt.Errorf("%s: %q is no number", name, fields[i])
			}
			out[name][fields[i+1]] = append(out[name][fields[i+1]], value)
		}
	}
	return out, lines.Err()
}

// span is the median of the runs of a benchmark, with the smallest and the largest value.
type span struct{ low, median, high float64 }

// of returns the values of a benchmark, of the first unit that it reports.
func (r results) of(name string, units ...string) (span, bool) {
	for _, unit := range units {
		list := slices.Clone(r[name][unit])
		if len(list) == 0 {
			continue
		}
		slices.Sort(list)
		return span{list[0], list[len(list)/2], list[len(list)-1]}, true
	}
	return span{}, false
}
