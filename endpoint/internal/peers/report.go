package main

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"
	"text/tabwriter"
	"time"
)

// report is the printed report.
type report struct {
	Go       string       `json:"go"`
	System   string       `json:"system"`
	CPUs     int          `json:"cpus"`
	Versions []string     `json:"versions"`
	Callers  int          `json:"callers"`
	Sizes    []int64      `json:"sizes"`
	Peers    []peerFigure `json:"peers"`
	Targets  []target     `json:"targets"`
	// ReadRatio is the duration for the largest tensor divided by that for the smallest, if the function reads both
	// ends.
	ReadRatio float64 `json:"read_ratio"`
}

// peerFigure is the row of one peer. Times are in nanoseconds.
type peerFigure struct {
	Name    string            `json:"name"`
	CallP50 time.Duration     `json:"call_p50_ns"`
	CallP99 time.Duration     `json:"call_p99_ns"`
	Allocs  float64           `json:"allocations_per_call"`
	Cost    time.Duration     `json:"processor_per_call_ns"`
	Rate    float64           `json:"calls_per_second"`
	Tensors []tensorFigure    `json:"tensors"`
	Skipped map[string]string `json:"skipped,omitempty"`
}

// tensorFigure is the size of a tensor and the median of a call that receives it; 0 if it was not measured.
type tensorFigure struct {
	Bytes int64         `json:"bytes"`
	P50   time.Duration `json:"p50_ns"`
	Calls int           `json:"calls"`
}

func (b *bench) report() report {
	r := report{
		Go: runtime.Version(), System: runtime.GOOS + "/" + runtime.GOARCH, CPUs: runtime.NumCPU(), Versions: versions(),
		Callers: b.plan.callers, Sizes: b.plan.sizes,
	}
	for _, s := range b.subjects {
		r.Peers = append(r.Peers, s.figure(b.plan.sizes))
	}
	r.Targets = b.targets()
	reading := b.subject("endpoint, read").tensors
	r.ReadRatio = ratio(reading[b.plan.sizes[len(b.plan.sizes)-1]], reading[b.plan.sizes[0]])
	return r
}

func (s *subject) figure(sizes []int64) peerFigure {
	f := peerFigure{
		Name: s.name, CallP50: pooled(s.calls, 0.5), CallP99: pooled(s.calls, 0.99), Allocs: s.allocs, Cost: s.cost, Rate: quantile(s.rates, 0.5),
	}
	for _, size := range sizes {
		t := tensorFigure{Bytes: size, P50: pooled(s.tensors[size], 0.5)}
		for _, turn := range s.tensors[size] {
			t.Calls += len(turn)
		}
		f.Tensors = append(f.Tensors, t)
		if why := s.skipped[size]; why != "" {
			if f.Skipped == nil {
				f.Skipped = map[string]string{}
			}
			f.Skipped[byteSize(size)] = why
		}
	}
	return f
}

func (b *bench) subject(name string) *subject {
	for _, s := range b.subjects {
		if s.name == name {
			return s
		}
	}
	return nil
}

// versions returns the compared modules with their versions.
func versions() []string {
	var list []string
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return nil
	}
	for _, m := range info.Deps {
		switch m.Path {
		case "google.golang.org/grpc", "github.com/containerd/ttrpc", "google.golang.org/protobuf", "github.com/fxamacker/cbor/v2":
			list = append(list, m.Path+" "+m.Version)
		}
	}
	return list
}

func (r report) writeJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

func (r report) writeTable(w io.Writer) error {
	fmt.Fprintf(w, "%s, %s, %d CPUs; %s\n\n", r.Go, r.System, r.CPUs, strings.Join(r.Versions, ", "))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "\tcall p50\tp99\tallocations\tprocessor\t%d callers\t", r.Callers)
	for _, size := range r.Sizes {
		fmt.Fprintf(t, "%s tensor\t", byteSize(size))
	}
	fmt.Fprintln(t)
	var notes []string
	for _, p := range r.Peers {
		if p.CallP50 > 0 {
			fmt.Fprintf(t, "%s\t%s\t%s\t%.1f\t%s\t%.0f/s\t", p.Name, short(p.CallP50), short(p.CallP99), p.Allocs, short(p.Cost), p.Rate)
		} else {
			fmt.Fprintf(t, "%s\t\t\t\t\t\t", p.Name)
		}
		for _, size := range p.Tensors {
			cell := short(size.P50)
			if size.Calls == 0 {
				cell = ""
			}
			if why := p.Skipped[byteSize(size.Bytes)]; why != "" {
				cell = "-"
				notes = append(notes, fmt.Sprintf("%s, tensor of %s: %s", p.Name, byteSize(size.Bytes), why))
			}
			fmt.Fprintf(t, "%s\t", cell)
		}
		fmt.Fprintln(t)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, note := range notes {
		fmt.Fprintln(w, note)
	}
	fmt.Fprintln(w)
	for _, t := range r.Targets {
		fmt.Fprintln(w, t.line())
	}
	_, err := fmt.Fprintf(w, "        the largest tensor as argument, both ends of which are read, times the smallest: %.2f\n", r.ReadRatio)
	return err
}

// short formats a duration with three digits.
func short(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return fmt.Sprintf("%.1f µs", float64(d)/float64(time.Microsecond))
	case d < time.Second:
		return fmt.Sprintf("%.2f ms", float64(d)/float64(time.Millisecond))
	}
	return fmt.Sprintf("%.2f s", d.Seconds())
}

// byteSize formats a size that is a small multiple of a power of 1024.
func byteSize(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB"}
	i := 0
	for ; n >= 1024 && n%1024 == 0 && i < len(units)-1; i++ {
		n /= 1024
	}
	return fmt.Sprintf("%d %s", n, units[i])
}
