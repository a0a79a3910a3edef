//go:build unix

// Command web answers HTTP requests with four worker processes on one model, which an owner holds in memory once. A new
// version is used without a failed request. After SIGTERM requests in flight end.
//
//	go run ./examples/service/owner SOCKET
//	go run ./examples/service/web -listen localhost:8080 SOCKET
//	curl -d '{"x": [1, 2, 3]}' localhost:8080/forward
//
// The model is published by the owner as base: a sequence of square float32 matrices.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// workerEnv marks a process as a worker. Its value is the worker's number.
const workerEnv = "SHAREDTENSOR_WEB_WORKER"

func main() {
	listen := flag.String("listen", "localhost:8080", "address to serve")
	workers := flag.Int("workers", 4, "how many processes answer")
	drain := flag.Duration("drain", 10*time.Second, "how long requests may take to end after SIGTERM")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: web [flags] SOCKET")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	log.SetFlags(0)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if number := os.Getenv(workerEnv); number != "" {
		log.SetPrefix("worker " + number + ": ")
		err = work(ctx, flag.Arg(0), *drain)
	} else {
		log.SetPrefix("web: ")
		err = supervise(ctx, *listen, *workers, *drain)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// supervise opens the port and keeps the workers running on it until ctx ends and they have drained.
func supervise(ctx context.Context, address string, workers int, drain time.Duration) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	defer listener.Close()
	file, err := inheritable(listener.(*net.TCPListener))
	if err != nil {
		return err
	}
	defer file.Close()
	log.Printf("%d workers on http://%s", workers, listener.Addr())
	done := make(chan struct{})
	for i := range workers {
		go func() {
			keepRunning(ctx, i+1, file, drain)
			done <- struct{}{}
		}()
	}
	<-ctx.Done()
	listener.Close() // the workers close theirs; the kernel refuses new connections
	file.Close()
	for range workers {
		<-done
	}
	log.Print("drained")
	return nil
}
