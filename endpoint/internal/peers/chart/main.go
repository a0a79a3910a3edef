// Chart reads the output of the benchmarks of package peers, also of several runs, and writes docs/benchmarks.md and
// docs/benchmarks.svg:
//
//	go test -run - -bench 'Call|Argument|Result' -count 3 -timeout 2h . | tee figures.txt
//	go run ./chart -machine "AMD EPYC, two processors, idle" -date 2026-11-28 <figures.txt
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

func main() {
	machine := flag.String("machine", "", "the machine and its load, for the page")
	date := flag.String("date", "", "the day of the runs, for the page")
	dir := flag.String("o", "../../../docs", "the folder of the page and the chart")
	flag.Parse()
	if *machine == "" || *date == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := write(os.Stdin, *dir, *machine, *date); err != nil {
		fmt.Fprintln(os.Stderr, "chart:", err)
		os.Exit(1)
	}
}

func write(in io.Reader, dir, machine, date string) error {
	results, err := readResults(in)
	if err != nil {
		return err
	}
	panels := arrange(results)
	if len(panels) == 0 {
		return fmt.Errorf("the input has no benchmark of the chart: pass the output of go test -bench")
	}
	page, chart := renderPage(panels, machine, date), renderChart(panels)
	if err := os.WriteFile(filepath.Join(dir, "benchmarks.md"), []byte(page), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "benchmarks.svg"), []byte(chart), 0o644)
}
