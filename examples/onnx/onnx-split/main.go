//go:build linux

// Command onnx-split writes the graph and the weights of an ONNX model to separate files.
//
//	onnx-split MODEL.onnx PREFIX    writes PREFIX.onnx and PREFIX.safetensors
//
// PREFIX.onnx names PREFIX.safetensors as its external data, so ONNX runtimes can load the pair. Weights are the
// initializers and constants of the main graph from 1 KiB; -min sets another size. With -optimize LEVEL, ONNX Runtime
// optimizes the graph first: 1 is basic, 2 extended, 99 all, which depends on this machine's processor.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"example.com/onnx/graph"
	"example.com/onnx/internal/wheel"
	"example.com/onnx/ort"

	"github.com/sharedtensor/sharedtensor/module/safetensors"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "onnx-split:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("onnx-split", flag.ContinueOnError)
	minBytes := flags.Int64("min", graph.DefaultMinBytes, "size in bytes from which tensors are weights")
	optimize := flags.Int("optimize", 0, "level of graph optimization before the split: 0, 1, 2 or 99")
	library := flags.String("library", "", "path of libonnxruntime.so (default: the one in the wheel onnxruntime, downloaded with pip)")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 2 {
		return errors.New("usage: onnx-split [-min BYTES] [-optimize LEVEL] MODEL.onnx PREFIX")
	}
	path, prefix := flags.Arg(0), flags.Arg(1)
	weights := prefix + ".safetensors"
	if before, err := os.Stat(path); err == nil {
		if after, err := os.Stat(prefix + ".onnx"); err == nil && os.SameFile(before, after) {
			return fmt.Errorf("%s would be overwritten: choose another PREFIX", path)
		}
	}
	model, err := read(path, *library, ort.Optimization(*optimize))
	if err != nil {
		return err
	}
	parts, err := graph.Split(model, graph.Options{Location: filepath.Base(weights), MinBytes: *minBytes})
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := safetensors.WriteFile(weights, parts.Header, parts.Source); err != nil {
		return err
	}
	if err := writeFile(prefix+".onnx", parts.Graph); err != nil {
		return err
	}
	fmt.Fprintf(out, "%s.onnx: %d bytes, %s: %d tensors, %d bytes\n", prefix, len(parts.Graph), weights, len(parts.Header.Tensors), parts.Header.DataBytes())
	return nil
}

// read returns the model, optimized by ONNX Runtime if level is not 0.
func read(path, library string, level ort.Optimization) (_ []byte, err error) {
	if level == ort.OptimizeNone {
		return os.ReadFile(path)
	}
	if library == "" {
		if library, err = wheel.Runtime(context.Background()); err != nil {
			return nil, err
		}
	}
	l, err := ort.Open(library)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "onnx-split-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	optimized := filepath.Join(dir, "model.onnx")
	if err := l.SaveOptimized(path, optimized, level); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return os.ReadFile(optimized)
}

// writeFile replaces a file atomically.
func writeFile(path string, data []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	_, err = f.Write(data)
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
