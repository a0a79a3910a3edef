// Package remotetest runs owners and gateways in separate processes for tests.
//
//	func TestMain(m *testing.M) { remotetest.Main(m, func() []gateway.Component { return []gateway.Component{&jsonrpc.Component{}} }) }
//
//	owner := remotetest.StartOwner(t, "--model", "llm=1048576")
//	gw := remotetest.StartGateway(t, owner.Socket)
//	http.Get(gw.HTTP() + "/healthz")
package remotetest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
)

// programEnv is the environment variable with the program that a process started by a test must run.
const programEnv = "SHAREDTENSOR_TEST_PROGRAM"

// Patience is the time limit for what should happen at once, on a busy machine.
const Patience = 60 * time.Second

// Main runs the tests of a package. In a process that a test started, it runs an owner, or a gateway with these
// components.
func Main(m *testing.M, components func() []gateway.Component) {
	switch os.Getenv(programEnv) {
	case "owner":
		os.Exit(report(ownerMain(os.Args[1:])))
	case "floor":
		os.Exit(report(floorMain()))
	case "gateway":
		os.Exit(report(gatewayMain(os.Args[1:], components())))
	}
	os.Exit(m.Run())
}

func report(err error) int {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// untilTerminated returns a context that ends at SIGTERM or at the end of standard input, which closes if the test is
// killed.
func untilTerminated() (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	return ctx, func() { cancel(); stop() }
}

// ready is the first line of a gateway's output.
type ready struct {
	Addresses gateway.Addresses
	Routes    []string
}

// gatewayMain runs a gateway with the flags of the program.
func gatewayMain(args []string, components []gateway.Component) error {
	config := gateway.DefaultConfig()
	config.LameDuck = 0 // tests wait for gateways to end
	set := pflag.NewFlagSet("gateway", pflag.ContinueOnError)
	config.Flags(set)
	for _, c := range components {
		if own, ok := c.(gateway.Configurer); ok {
			own.Flags(set)
		}
	}
	if err := set.Parse(args); err != nil {
		return err
	}
	ctx, stop := untilTerminated()
	defer stop()
	g, err := gateway.New(gateway.Options{Config: config, Components: components, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	if err != nil {
		return err
	}
	go func() {
		<-g.Ready()
		_ = json.NewEncoder(os.Stdout).Encode(ready{g.Addresses(), g.Routes()}) // best effort: the test may have ended
	}()
	return g.Run(ctx)
}

// Process is a process that a test started. It is killed when the test ends.
type Process struct {
	t       testing.TB
	cmd     *exec.Cmd
	stdin   io.Closer
	log     *logBuffer
	waited  chan struct{}
	waitErr error
}

// logBuffer collects the standard error of a process.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// String returns everything written so far.
func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// start starts a program and returns its first line of output.
func start(t testing.TB, program string, args ...string) (*Process, string) {
	t.Helper()
	return startIn(t, nil, program, args...)
}

// startIn is start with a command, by, that becomes the program.
func startIn(t testing.TB, by []string, program string, args ...string) (*Process, string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	words := append(append(slices.Clone(by), exe), args...)
	p := &Process{t: t, cmd: exec.Command(words[0], words[1:]...), log: &logBuffer{}, waited: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), programEnv+"="+program)
	p.cmd.Stderr = p.log
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.stdin = stdin
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line := make(chan string, 1)
	go func() {
		out := bufio.NewReader(stdout)
		first, _ := out.ReadString('\n')
		line <- first
		_, _ = io.Copy(io.Discard, out)
		p.waitErr = p.cmd.Wait()
		close(p.waited)
	}()
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("%s wrote:\n%s", program, p.log)
		}
	})
	select {
	case first := <-line:
		return p, first
	case <-time.After(Patience):
		t.Fatalf("%s did not start; its log:\n%s", program, p.log)
		return nil, ""
	}
}

// Log returns the standard error of the process so far.
func (p *Process) Log() string { return p.log.String() }

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Kill ends the process with SIGKILL and waits for its end. A second call does nothing.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // best effort: it may have ended
	<-p.waited
}

// Terminate sends SIGTERM, waits for the process to end, and returns its exit error.
func (p *Process) Terminate() error {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Fatal(err)
	}
	return p.Wait()
}

// Signal sends a signal to the process.
func (p *Process) Signal(s os.Signal) error { return p.cmd.Process.Signal(s) }

// Wait waits until the process ends.
func (p *Process) Wait() error {
	p.t.Helper()
	select {
	case <-p.waited:
		return p.waitErr
	case <-time.After(Patience):
		p.t.Fatalf("the process did not end; its log:\n%s", p.log)
		return nil
	}
}

// Gateway is a gateway in a separate process.
type Gateway struct {
	*Process
	Addresses gateway.Addresses
	// Routes are the patterns of the HTTP listener and the methods of the gRPC listener.
	Routes []string
}

// StartGateway starts a gateway on free ports of the loopback interface and waits until it serves. NATS is off. args
// follow these settings and may override them.
func StartGateway(t testing.TB, owner string, args ...string) *Gateway {
	t.Helper()
	p, line := startGateway(t, owner, args...)
	var first ready
	if err := json.Unmarshal([]byte(line), &first); err != nil {
		t.Fatalf("the gateway did not start; its log:\n%s", p.log)
	}
	g := &Gateway{Process: p, Addresses: first.Addresses, Routes: first.Routes}
	return g
}

// RefusedGateway runs a gateway that must fail to start, and returns its output.
func RefusedGateway(t testing.TB, args ...string) string {
	t.Helper()
	p, line := startGateway(t, gateway.Off, args...)
	if line != "" {
		t.Fatal("the gateway started, but must refuse")
	}
	if p.Wait() == nil {
		t.Fatal("the gateway ended without an error")
	}
	return p.Log()
}

func startGateway(t testing.TB, owner string, args ...string) (*Process, string) {
	t.Helper()
	return start(t, "gateway", append([]string{
		"--owner", owner, "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--nats", gateway.Off, "--nats-listen", gateway.Off,
		"--store", filepath.Join(t.TempDir(), "store"),
	}, args...)...)
}

// HTTP returns the base URL of the gateway.
func (g *Gateway) HTTP() string { return "http://" + g.Addresses.HTTP }

// Eventually waits until condition returns nil. After Patience, it fails the test with the last error.
func Eventually(t testing.TB, condition func() error) {
	t.Helper()
	deadline := time.Now().Add(Patience)
	for {
		err := condition()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("timed out: %v", err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// FreeAddress returns a loopback address on which a process of the test can listen. Its port is below the ephemeral
// range, so the kernel does not assign it to a connection meanwhile.
func FreeAddress(tb testing.TB) string {
	tb.Helper()
	const first, end = 20000, 32768
	for range 100 {
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(first+rand.IntN(end-first)))
		if l, err := net.Listen("tcp", address); err == nil {
			_ = l.Close()
			return address
		}
	}
	tb.Fatal("no port is free")
	return ""
}
