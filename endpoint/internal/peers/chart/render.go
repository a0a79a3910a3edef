package main

import (
	"cmp"
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
)

// text returns a value with its unit, in three digits.
func (r row) text(value float64) string {
	if r.rate {
		return grouped(value) + "/s"
	}
	for _, unit := range []struct {
		ns   float64
		name string
	}{{1e9, "s"}, {1e6, "ms"}, {1e3, "µs"}} {
		if value >= unit.ns {
			return fmt.Sprintf("%.3g %s", value/unit.ns, unit.name)
		}
	}
	return fmt.Sprintf("%.3g ns", value)
}

// grouped returns a number of at most three digits that are not zero, with commas between thousands.
func grouped(value float64) string {
	if value > 0 {
		step := math.Pow(10, math.Floor(math.Log10(value))-2)
		value = math.Round(value/step) * step
	}
	digits := fmt.Sprintf("%.0f", value)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// first returns the row that the ratios of the panel refer to.
func (p panel) first() row {
	i := max(0, slices.IndexFunc(p.rows, func(r row) bool { return r.ours }))
	return p.rows[i]
}

// ratio returns the time of a row over that of the first row, or the rate of the first row over that of the row.
func (p panel) ratio(r row) float64 {
	if r.rate {
		return p.first().took.median / r.took.median
	}
	return r.took.median / p.first().took.median
}

const pageHead = `# Benchmarks

<!-- Written by: go run ./chart in endpoint/internal/peers. -->

Two processes of one host call each other. Each system makes the same calls, in one run. sharedtensor passes tensors in place, also
iceoryx2 passes results in place; the others copy the bytes. %s, %s. The values are medians of %s; a range is that of the runs.

![Durations of calls with sharedtensor, iceoryx2, a bare socket, net/rpc and gRPC](benchmarks.svg)

Commands, in ` + "`endpoint/internal/peers`" + `:

    go test -run - -bench 'Call|Argument|Result' -count 3 -timeout 2h . | tee figures.txt
    go run ./chart -machine MACHINE -date DATE <figures.txt

The last column is the time of a row over the time of the panel's first row; for calls per second it is the first row's rate over this
row's. [Figures](figures.md) has all other measurements and says where the time goes.
`

// renderPage returns the page with a table for each panel.
func renderPage(panels []panel, machine, date string) string {
	var b strings.Builder
	runs := "one run"
	if first := panels[0].rows[0].took; first.low != first.high {
		runs = "several runs"
	}
	fmt.Fprintf(&b, pageHead, machine, date, runs)
	for _, p := range panels {
		fmt.Fprintf(&b, "\n## %s%s\n\n| system | median | range | ratio |\n|---|---|---|---|\n", strings.ToUpper(p.title[:1]), p.title[1:])
		for _, r := range p.rows {
			rng := ""
			if r.took.low != r.took.high {
				rng = r.text(r.took.low) + " – " + r.text(r.took.high)
			}
			ratio := fmt.Sprintf("%.2g", p.ratio(r))
			if p.ratio(r) >= 100 {
				ratio = grouped(p.ratio(r))
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", r.name, r.text(r.took.median), rng, ratio)
		}
	}
	return b.String()
}

// The chart's measures in pixels.
const (
	width, labels, values = 880, 250, 110
	line, head, gap       = 22, 30, 18
)

const style = `<style>
text { font: 13px system-ui, sans-serif; fill: #24292f }
.title { font-weight: 600 }
.ours { fill: #0969da }
.other { fill: #8c959f }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 }
.ours { fill: #4493f8 }
.other { fill: #6e7681 }
}
</style>
`

// renderChart returns an SVG with a group of bars for each panel. Bars of durations have a logarithmic scale that begins at a
// third of the smallest value, because the systems differ by up to six orders of magnitude. Bars of rates begin at zero.
func renderChart(panels []panel) string {
	height := gap
	for _, p := range panels {
		height += head + line*len(p.rows) + gap
	}
	var b strings.Builder
	fmt.Fprintf(&b, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" role=\"img\">\n", width, height, width, height)
	b.WriteString(style)
	y := gap
	for _, p := range panels {
		title, scale := p.title+" (logarithmic, shorter is better)", p.scale()
		if p.rows[0].rate {
			title = p.title + " (longer is better)"
		}
		fmt.Fprintf(&b, "<text class=\"title\" x=\"8\" y=\"%d\">%s</text>\n", y+14, html.EscapeString(title))
		y += head
		for _, r := range p.rows {
			class := "other"
			if r.ours {
				class = "ours"
			}
			bar := scale(r.took.median) * (width - labels - values)
			fmt.Fprintf(&b, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>", labels-10, y+12, html.EscapeString(r.name))
			fmt.Fprintf(&b, "<rect class=\"%s\" x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"14\" rx=\"2\"/>", class, labels, y, max(bar, 1))
			fmt.Fprintf(&b, "<text x=\"%.1f\" y=\"%d\">%s</text>\n", labels+max(bar, 1)+8, y+12, html.EscapeString(r.text(r.took.median)))
			y += line
		}
		y += gap
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// scale returns the function from a value to the length of its bar, from 0 to 1.
func (p panel) scale() func(float64) float64 {
	by := func(a, b row) int { return cmp.Compare(a.took.median, b.took.median) }
	low, high := slices.MinFunc(p.rows, by).took.median/3, slices.MaxFunc(p.rows, by).took.median
	if p.rows[0].rate {
		return func(value float64) float64 { return value / high }
	}
	return func(value float64) float64 { return math.Log(value/low) / math.Log(high/low) }
}
