//go:build linux

// Command replicas is a front for several processes that serve HTTP: it starts them, restarts each that ends or does not
// answer, and passes each request to the next one that is ready. Requests that are declared repeatable are repeated at
// another replica if theirs ends before it has answered.
//
//	replicas -n 4 -dir DIR -listen localhost:8080 -repeat /vad -- PROGRAM ARGUMENT...
//
// In the arguments of the program, {socket} is the Unix socket that the replica has to serve, {port} a port of localhost, and
// {n} the number of the replica. docs/replicas.md explains the rest.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// options are the flags of the command.
type options struct {
	replicas                  int
	dir, listen, health       string
	port                      int
	repeat                    paths
	attempts, requests        int
	body, answer              int64
	timeout, wait, start      time.Duration
	drain, backoff, healthyIn time.Duration
	command                   []string
}

// paths is a flag that may be repeated.
type paths []string

func (p *paths) String() string     { return strings.Join(*p, ",") }
func (p *paths) Set(s string) error { *p = append(*p, s); return nil }

func main() {
	log.SetFlags(0)
	log.SetPrefix("replicas: ")
	var o options
	flag.IntVar(&o.replicas, "n", 2, "number of replicas")
	flag.StringVar(&o.dir, "dir", "", "directory of the replicas' sockets, which only this front uses")
	flag.StringVar(&o.listen, "listen", "localhost:8080", "address to serve; a socket of the service manager replaces it")
	flag.IntVar(&o.port, "port", 9001, "the first of the ports for {port}")
	flag.StringVar(&o.health, "health", "/health", "path of the replicas that answers 200 when they are ready")
	flag.Var(&o.repeat, "repeat", "path whose requests may run twice; may be given several times")
	flag.IntVar(&o.attempts, "attempts", 0, "how many replicas may end while they process one repeatable request; 0 is one more than -n")
	flag.IntVar(&o.requests, "max-requests", 256, "requests in flight; more are refused with 503")
	flag.Int64Var(&o.body, "max-body", 1<<20, "bytes of a request's body; more are refused with 413")
	flag.Int64Var(&o.answer, "max-answer", 1<<20, "bytes of a repeatable request's answer that are held until it is complete")
	flag.DurationVar(&o.timeout, "timeout", 10*time.Minute, "how long a request may take")
	flag.DurationVar(&o.wait, "wait", 30*time.Second, "how long a request waits for a replica that is ready")
	flag.DurationVar(&o.start, "start", 10*time.Minute, "how long a replica may take to become ready")
	flag.DurationVar(&o.drain, "drain", 10*time.Second, "how long requests may take to end after SIGTERM")
	flag.DurationVar(&o.backoff, "max-backoff", 30*time.Second, "the longest pause before a replica is started again")
	flag.DurationVar(&o.healthyIn, "health-timeout", 2*time.Second, "how long an answer to a health request may take")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: replicas [flags] -dir DIR -- PROGRAM ARGUMENT...")
		flag.PrintDefaults()
	}
	flag.Parse()
	o.command = flag.Args()
	if o.attempts == 0 {
		o.attempts = o.replicas + 1 // all replicas may be killed at once
	}
	if len(o.command) == 0 || o.dir == "" || o.replicas < 1 || o.attempts < 1 || o.requests < 1 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(o); err != nil {
		log.Fatal(err)
	}
}

// run serves until SIGTERM or SIGINT. Then requests in flight end, and the replicas are stopped.
func run(o options) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if o.dir, err = filepath.Abs(o.dir); err != nil { // the replicas may change their working directory
		return err
	}
	var lock *os.File
	if err := retried(func() (err error) { lock, err = exclusive(o.dir); return err }); err != nil {
		return err
	}
	defer lock.Close()
	var listener net.Listener
	if err := retried(func() (err error) { listener, err = listen(o.listen); return err }); err != nil {
		return err
	}
	running, cancel := context.WithCancel(context.Background())
	defer cancel()
	p := newPool(o)
	if err := stopAbove(o, o.replicas); err != nil { // an earlier front may have had more
		return err
	}
	var group sync.WaitGroup
	for _, r := range p.replicas {
		group.Go(func() { r.keepRunning(running) })
	}
	server := &http.Server{
		Handler: newFront(o, p), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		WriteTimeout: o.wait + o.timeout + 10*time.Second, // a client that reads nothing keeps its slot until then
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	log.Printf("%d replicas on http://%s", o.replicas, listener.Addr())
	select {
	case err = <-failed:
	case <-ctx.Done():
		grace, end := context.WithTimeout(context.Background(), o.drain)
		defer end()
		err = server.Shutdown(grace)
	}
	cancel()
	group.Wait()
	return errors.Join(err, stopAbove(o, 0)) // a front that ends at once has not adopted them
}

// retried calls f until it succeeds, for at most a second: the kernel may not have closed the files of a killed front yet.
func retried(f func() error) (err error) {
	for end := time.Now().Add(time.Second); ; time.Sleep(20 * time.Millisecond) {
		if err = f(); err == nil || time.Now().After(end) {
			return err
		}
	}
}

// exclusive creates the directory if it is missing, and locks it against other fronts until the file is closed.
func exclusive(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(dir, "front.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("another front uses %s: stop it, or choose another -dir: %w", dir, err), lock.Close())
	}
	return lock, nil
}

// listen returns the socket that the service manager has passed (sd_listen_fds(3)), or binds the address. A service manager
// that keeps its socket open while it restarts the front loses no connection that waits in its queue.
func listen(address string) (net.Listener, error) {
	if os.Getenv("LISTEN_PID") != strconv.Itoa(os.Getpid()) || os.Getenv("LISTEN_FDS") != "1" {
		return net.Listen("tcp", address)
	}
	passed := os.NewFile(3, "listener")
	defer passed.Close()
	syscall.CloseOnExec(3)
	return net.FileListener(passed)
}
