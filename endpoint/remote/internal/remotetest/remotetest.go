// Package remotetest runs owners and gateways as processes of their own for tests.
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

// programEnv says to a process that it was started by a test, and as what.
const programEnv = "SHAREDTENSOR_TEST_PROGRAM"

// Patience is how long tests wait for what should happen at once, on a machine that does much else.
const Patience = 60 * time.Second

// Main runs the tests of a package. In a process that a test started it runs an owner, or a gateway with these
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

// untilTerminated ends with SIGTERM, or with standard input: that of a test that was killed.
func untilTerminated() (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	return ctx, func() { cancel(); stop() }
}

// gatewayMain runs a gateway with the flags of the program.
func gatewayMain(args []string, components []gateway.Component) error {
	config := gateway.DefaultConfig()
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
		_ = json.NewEncoder(os.Stdout).Encode(g.Addresses()) // a test that has gone does not read it
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

// logBuffer is what a process writes to standard error.
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

// String is everything so far.
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

// startIn is start, by a command that becomes the program.
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
		t.Fatalf("%s did not begin; it wrote:\n%s", program, p.log)
		return nil, ""
	}
}

// Log is what the process has written to standard error.
func (p *Process) Log() string { return p.log.String() }

// PID is the number of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Kill ends the process with SIGKILL and waits until it is gone. A second call does nothing.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // it may have ended by itself
	<-p.waited
}

// Terminate asks the process to end and returns what became of it.
func (p *Process) Terminate() error {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Fatal(err)
	}
	return p.Wait()
}

// Stop freezes the process and returns when it is frozen, where the system tells. Continue thaws it.
func (p *Process) Stop() {
	_ = p.cmd.Process.Signal(syscall.SIGSTOP)
	for range 1000 {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
		if _, state, found := bytes.Cut(text, []byte(") ")); err != nil || !found || state[0] == 'T' {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// Continue lets a frozen process go on.
func (p *Process) Continue() { _ = p.cmd.Process.Signal(syscall.SIGCONT) }

// Wait waits for the end of the process.
func (p *Process) Wait() error {
	p.t.Helper()
	select {
	case <-p.waited:
		return p.waitErr
	case <-time.After(Patience):
		p.t.Fatalf("the process did not end; it wrote:\n%s", p.log)
		return nil
	}
}

// Gateway is a gateway in a process of its own.
type Gateway struct {
	*Process
	Addresses gateway.Addresses
}

// StartGateway starts a gateway on free ports of the loopback interface and waits until it serves. NATS is off. args go
// behind these settings and may change them.
func StartGateway(t testing.TB, owner string, args ...string) *Gateway {
	t.Helper()
	p, line := startGateway(t, owner, args...)
	g := &Gateway{Process: p}
	if err := json.Unmarshal([]byte(line), &g.Addresses); err != nil {
		t.Fatalf("the gateway did not begin; it wrote:\n%s", p.log)
	}
	return g
}

// RefusedGateway starts a gateway that is expected not to begin, and returns what it wrote.
func RefusedGateway(t testing.TB, args ...string) string {
	t.Helper()
	p, line := startGateway(t, gateway.Off, args...)
	if line != "" {
		t.Fatal("the gateway began")
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

// HTTP is the beginning of the gateway's URLs.
func (g *Gateway) HTTP() string { return "http://" + g.Addresses.HTTP }

// Eventually waits until condition returns nil, and fails the test with what it returned last.
func Eventually(t testing.TB, condition func() error) {
	t.Helper()
	deadline := time.Now().Add(Patience)
	for {
		err := condition()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("it did not come to pass: %v", err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// FreeAddress is a loopback address on which a process that the test starts may listen. The kernel gives its port to no
// connection meanwhile: it lies below those that connections get.
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
