//go:build linux

// Command onnx-serve answers HTTP requests with an ONNX model in several processes, on weights that an owner holds once.
//
//	onnx-serve -socket S -publish NAME=PREFIX                  owner of PREFIX.onnx and PREFIX.safetensors (see onnx-split)
//	onnx-serve -socket S -workers 4 -listen HOST:PORT NAME     workers on the owner's weights
//	onnx-serve -private MODEL.onnx -listen HOST:PORT           workers with private weights, for comparison
//
// The owner publishes its files again on SIGHUP. The workers switch to the new version between two runs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"example.com/onnx/internal/wheel"
	"example.com/onnx/ort"
	"example.com/onnx/serve"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "onnx-serve:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("onnx-serve", flag.ContinueOnError)
	c := serve.Config{}
	flags.StringVar(&c.Library, "library", "", "path of libonnxruntime.so (default: the one in the wheel onnxruntime, downloaded with pip)")
	flags.StringVar(&c.Socket, "socket", "", "the owner's socket")
	flags.StringVar(&c.Private, "private", "", "model file that each worker loads alone")
	flags.BoolVar(&c.Options.Prepack, "prepack", false, "let kernels copy weights into a faster layout, which is private memory")
	optimize := flags.Int("optimize", 0, "level of graph optimization: 0, 1, 2 or 99 (all); with a published model, levels above 0 copy weights")
	flags.BoolVar(&c.Options.Arena, "arena", false, "keep freed memory for later runs")
	flags.IntVar(&c.Options.Threads, "threads", 1, "threads of one run")
	flags.DurationVar(&c.Drain, "drain", 10*time.Second, "time for requests in flight after SIGTERM")
	flags.Int64Var(&c.Limits.Body, "max-body", 0, "maximum size of a request in bytes (default 16 MiB)")
	flags.IntVar(&c.Limits.Queue, "max-queue", 0, "requests in a worker (default 64)")
	flags.Int64Var(&c.Limits.Rows, "max-rows", 0, "maximum number of rows of one run (default 8)")
	flags.DurationVar(&c.Limits.Wait, "batch-wait", 0, "how long a request waits for others to join its run (default 2ms)")
	flags.DurationVar(&c.Limits.Timeout, "timeout", 0, "maximum time of a request (default 30s)")
	batch := flags.String("batch", "", "dimension along which requests are combined, for each input and output: NAME=AXIS,...")
	publish := flags.String("publish", "", "own a model: NAME=PREFIX")
	listen := flags.String("listen", "localhost:8080", "address to serve")
	workers := flags.Int("workers", 4, "number of processes")
	if err := flags.Parse(args); err != nil {
		return err
	}
	c.Options.Optimize = ort.Optimization(*optimize)
	var err error
	if c.Batch, err = serve.ParseBatch(*batch); err != nil {
		return err
	}
	if *publish != "" {
		name, prefix, ok := strings.Cut(*publish, "=")
		if !ok {
			return fmt.Errorf("-publish %q is not NAME=PREFIX", *publish)
		}
		return serve.Own(ctx, c.Socket, name, prefix)
	}
	c.Name = flags.Arg(0)
	if (c.Name == "") == (c.Private == "") {
		return errors.New("give the NAME of a published model or -private FILE")
	}
	if c.Library == "" {
		if c.Library, err = wheel.Runtime(ctx); err != nil {
			return err
		}
	}
	if os.Getenv(serve.WorkerVariable) != "" {
		return serve.Work(ctx, c)
	}
	return serve.Supervise(ctx, *listen, *workers, c.Drain)
}
