//go:build linux

// Command demo shows ONNX models in four processes on one copy of the weights. It downloads ONNX Runtime and two real models
// with pip, starts an owner and workers, compares their answers with the models that are not split, and measures memory,
// restart and requests per second with and without sharing.
//
//	go run ./demo
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"example.com/onnx/internal/run"
	"example.com/onnx/internal/synthetic"
	"example.com/onnx/internal/wheel"
	"example.com/onnx/ort"
)

// options are the flags.
type options struct {
	workers       int
	layers, width int
	seconds       float64
	restarts      int
	setups        []setup
}

// tolerance is the maximum difference between answers of the workers and of the model that is not split.
const tolerance = 1e-5

func main() {
	o := options{setups: setups}
	flag.IntVar(&o.workers, "workers", 4, "number of workers")
	flag.IntVar(&o.layers, "layers", 8, "layers of the large model")
	flag.IntVar(&o.width, "width", 2048, "width of the large model's layers")
	flag.Float64Var(&o.seconds, "seconds", 3, "duration of each measurement of requests per second")
	flag.IntVar(&o.restarts, "restarts", 5, "number of restarts; the median is printed")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := demo(ctx, o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// stage has what all parts of the demonstration use.
type stage struct {
	options
	out      io.Writer
	dir      string
	programs run.Programs
	path     string // of the library
	library  *ort.Library
}

func demo(ctx context.Context, o options, out io.Writer) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	dir, err := os.MkdirTemp("", "onnx-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	s, err := newStage(ctx, o, dir, out)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "ONNX Runtime %s, %d workers\n\n", s.library.Version, o.workers)
	if err := s.realModels(ctx); err != nil {
		return err
	}
	return s.largeModel(ctx)
}

// newStage builds the programs in dir and loads the library.
func newStage(ctx context.Context, o options, dir string, out io.Writer) (s *stage, err error) {
	s = &stage{options: o, out: out, dir: dir}
	if s.path, err = wheel.Runtime(ctx); err != nil {
		return nil, err
	}
	if s.programs, err = run.Build(ctx, s.dir); err != nil {
		return nil, err
	}
	s.library, err = ort.Open(s.path)
	return s, err
}

// largeModel makes a large model and a tiny one of the same structure, and measures both.
func (s *stage) largeModel(ctx context.Context) error {
	large := synthetic.Model{Layers: s.layers, Width: s.width, Seed: 1}
	tiny := synthetic.Model{Layers: s.layers, Width: 64, Seed: 1}
	fmt.Fprintf(s.out, "\nA synthetic model with %.0f MB of weights (%d layers of %d × %d):\n", megabytes(large.Bytes()), s.layers, s.width, s.width)
	for name, m := range map[string]synthetic.Model{"large": large, "tiny": tiny} {
		if err := s.makePair(ctx, name, m); err != nil {
			return err
		}
	}
	if err := s.memory(ctx, large.Bytes()); err != nil {
		return err
	}
	if err := s.speed(ctx); err != nil {
		return err
	}
	return s.events(ctx)
}

// makePair writes a model and splits it.
func (s *stage) makePair(ctx context.Context, name string, m synthetic.Model) error {
	if err := m.WriteFile(s.file(name + ".onnx")); err != nil {
		return err
	}
	return s.programs.Split(ctx, s.file(name+".onnx"), s.file(name+"-split"))
}

func (s *stage) file(name string) string { return filepath.Join(s.dir, name) }

// defaults are ONNX Runtime's own options.
var defaults = ort.Options{Optimize: ort.OptimizeAll, Prepack: true, Arena: true}

// reference returns the outputs of a model that is not split, with ONNX Runtime's own options.
func (s *stage) reference(path string, inputs map[string]ort.Tensor) (map[string]ort.Tensor, error) {
	session, err := s.library.NewSessionFromFile(path, defaults)
	if err != nil {
		return nil, err
	}
	outputs, err := session.Run(inputs)
	return outputs, errors.Join(err, session.Close())
}

// input returns an input of the large model.
func (s *stage) input() map[string]ort.Tensor { return input(s.width) }

func input(width int) map[string]ort.Tensor {
	x := make([]float32, width)
	for i := range x {
		x[i] = float32(i%7)/7 - 0.4
	}
	return map[string]ort.Tensor{"x": ort.Floats([]int64{1, int64(width)}, x)}
}

func megabytes(n int64) float64 { return float64(n) / 1e6 }
