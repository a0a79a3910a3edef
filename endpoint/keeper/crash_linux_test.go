package keeper_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
)

// The crash matrix kills each process at each named step of an operation. A process that reaches the armed step reports
// it and stops until the victim has been killed.

// crashDir is the environment variable with the directory of a crash test: the file "armed" has the name of the armed
// step, and the director listens on the socket "steps".
const crashDir = "SHAREDTENSOR_CRASH_DIR"

// armSteps makes this process report the armed step.
func armSteps() {
	dir := os.Getenv(crashDir)
	if dir == "" {
		return
	}
	status.Reach = func(step string) {
		armed, err := os.ReadFile(filepath.Join(dir, "armed"))
		if err != nil || string(armed) != step {
			return
		}
		c, err := net.Dial("unix", filepath.Join(dir, "steps"))
		if err != nil {
			return
		}
		defer c.Close()
		fmt.Fprintln(c, os.Getpid(), step)
		_, _ = io.Copy(io.Discard, c) // until the director closes the connection
	}
}

// crashSteps are the steps by operation.
var crashSteps = map[string][]string{
	"publish":  {"publish exported", "publish begun", "keeper received", "keeper held", "publish stored", "publish recorded", "publish visible", "publish answered"},
	"parts":    {"part added", "publish begun", "publish stored", "publish recorded", "publish visible"},
	"withdraw": {"withdraw recorded"},
	"acquire":  {"acquire requested", "acquire leased", "acquire answered", "acquire mapped"},
	"adopt":    {"adopt begun", "adopt opened", "adopt published", "adopt done"},
	"upgrade": {
		"upgrade started", "upgrade requested", "upgrade frozen", "upgrade sent", "upgrade received", "upgrade adopted", "upgrade ready", "upgrade committed",
		"upgrade left", "upgrade serving",
	},
}

// cell is a cell of the matrix.
type cell struct{ operation, step, victim string }

// crashMatrix returns all cells.
func crashMatrix() (cells []cell) {
	for _, operation := range []string{"publish", "parts", "withdraw", "acquire", "adopt", "upgrade"} {
		for _, step := range crashSteps[operation] {
			for _, victim := range []string{"owner", "successor", "keeper", "client", "publisher"} {
				if victim != "successor" || operation == "upgrade" {
					cells = append(cells, cell{operation, step, victim})
				}
			}
		}
	}
	return cells
}

// actor is a client or publisher process.
type actor struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *bufio.Reader
}

// crashTest directs the processes.
type crashTest struct {
	t      *testing.T
	dir    string
	socket string
	args   []string // of owners
	hits   chan net.Conn
	armed  atomic.Bool // the next hit is reported
	actors map[string]*actor
	log    *os.File
	stdin  *os.File // of owners; its end ends them
	owners sync.WaitGroup

	acknowledged map[string]published
	next         int
	highest      map[string]uint64
	reads        int
}

// published is the last acknowledged change of a name; version 0 after a withdrawal.
type published struct {
	version uint64
	value   int
}

func newCrashTest(t *testing.T, args ...string) *crashTest {
	dir, err := os.MkdirTemp("", "crash")
	require.NoError(t, err)
	c := &crashTest{
		t: t, dir: dir, socket: filepath.Join(dir, "s.sock"), args: args, hits: make(chan net.Conn), actors: map[string]*actor{},
		acknowledged: map[string]published{}, highest: map[string]uint64{},
	}
	l, err := net.Listen("unix", filepath.Join(dir, "steps"))
	require.NoError(t, err)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if !c.armed.CompareAndSwap(true, false) { // another process has reached the step
				conn.Close()
				continue
			}
			c.hits <- conn
		}
	}()
	c.log, err = os.Create(filepath.Join(dir, "log"))
	require.NoError(t, err)
	read, write, err := os.Pipe()
	require.NoError(t, err)
	c.stdin = read
	t.Cleanup(func() {
		if t.Failed() {
			text, _ := os.ReadFile(c.log.Name())
			t.Logf("%s", text[max(0, len(text)-8000):])
		}
		l.Close()
		for _, a := range c.actors {
			_ = a.cmd.Process.Kill()
			_ = a.cmd.Wait()
		}
		write.Close() // ends the owners
		c.owners.Wait()
		if pid := c.keeperPID(); pid != 0 {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		c.stdin.Close()
		c.log.Close()
		_ = os.RemoveAll(dir)
	})
	return c
}

// command prepares a process of this test.
func (c *crashTest) command(args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), crashDir+"="+c.dir)
	cmd.Stderr = c.log
	return cmd
}

// startOwner starts an owner.
func (c *crashTest) startOwner() {
	cmd := c.command(c.args...)
	cmd.Env = append(cmd.Env, "SHARED_TENSOR_TEST_OWNER="+c.socket)
	cmd.Stdin = c.stdin
	require.NoError(c.t, cmd.Start())
	c.owners.Go(func() { _ = cmd.Wait() })
}

// ownerPID returns the process that serves. It starts an owner if none does.
func (c *crashTest) ownerPID() int {
	for end := time.Now().Add(time.Minute); ; {
		u, err := endpoint.Dial(c.t.Context(), endpoint.ClientOptions{Socket: c.socket})
		if err == nil {
			info, err := u.ServerInfo(c.t.Context())
			u.Close()
			if err == nil {
				return int(info.PID)
			}
		}
		require.True(c.t, time.Now().Before(end), "no owner serves: %v", err)
		c.startOwner()
		for range 200 {
			if time.Sleep(5 * time.Millisecond); c.serves() {
				break
			}
		}
	}
}

// serves reports whether an owner answers.
func (c *crashTest) serves() bool {
	u, err := endpoint.Dial(c.t.Context(), endpoint.ClientOptions{Socket: c.socket})
	if err != nil {
		return false
	}
	defer u.Close()
	_, err = u.Ping(c.t.Context())
	return err == nil
}

// keeperPID returns the process of the keeper, or 0.
func (c *crashTest) keeperPID() int {
	text, err := os.ReadFile(c.socket + ".keep.lock")
	pid, failed := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || failed != nil || ended(pid) {
		return 0
	}
	return pid
}

// actor returns the process with the name, which it starts if necessary.
func (c *crashTest) actor(name string) *actor {
	if a := c.actors[name]; a != nil {
		return a
	}
	cmd := c.command("act", c.socket)
	in, err := cmd.StdinPipe()
	require.NoError(c.t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(c.t, err)
	require.NoError(c.t, cmd.Start())
	c.actors[name] = &actor{cmd, in, bufio.NewReader(out)}
	return c.actors[name]
}

// errActorEnded means that an actor was killed before it answered.
var errActorEnded = errors.New("the process ended")

// ask sends a command to an actor and returns its answer.
func (a *actor) ask(command string) (uint64, error) {
	if _, err := fmt.Fprintln(a.in, command); err != nil {
		return 0, errActorEnded
	}
	line, err := a.lines.ReadString('\n')
	if err != nil {
		return 0, errActorEnded
	}
	word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
	if word != "ok" {
		return 0, errors.New(rest)
	}
	return strconv.ParseUint(rest, 10, 64)
}

// begin starts an operation. Its end is reported on the returned channel.
func (c *crashTest) begin(operation string) <-chan error {
	done := make(chan error, 1)
	switch operation {
	case "publish", "parts", "withdraw":
		name := string(rune('a' + c.next%3))
		switch operation {
		case "withdraw":
			name = "w"
		case "parts":
			name = "parts"
		}
		a, value := c.actor("publisher"), c.next
		c.next++
		command := fmt.Sprintf("%s %s %d", operation, name, value)
		before, known := c.acknowledged[name]
		delete(c.acknowledged, name) // until the outcome is known
		go func() {
			version, err := a.ask(command)
			switch {
			case err == nil && operation == "withdraw":
				c.acknowledged[name] = published{}
			case err == nil:
				c.acknowledged[name] = published{version, value}
			case known && before.version != 0 && operation != "withdraw":
				c.acknowledged[name] = before // at least that
			}
			done <- err
		}()
	case "acquire":
		a := c.actor("client")
		go func() {
			_, err := a.ask("acquire m")
			done <- err
		}()
	case "adopt":
		owner := c.ownerPID()
		_ = syscall.Kill(owner, syscall.SIGKILL)
		require.Eventually(c.t, func() bool { return ended(owner) }, 20*time.Second, time.Millisecond)
		c.startOwner()
		done <- nil
	case "upgrade":
		require.NoError(c.t, syscall.Kill(c.ownerPID(), syscall.SIGUSR2))
		done <- nil
	}
	return done
}

// mustAsk publishes with the publisher while no step is armed. It repeats the request if the connection to an owner that was
// killed before ends.
func (c *crashTest) mustAsk(command string, value int) {
	name := strings.Fields(command)[1]
	version, err := c.actor("publisher").ask(fmt.Sprint(command, " ", value))
	for range 3 {
		if err != nil && strings.Contains(err.Error(), "the connection ended") {
			version, err = c.actor("publisher").ask(fmt.Sprint(command, " ", value))
		}
	}
	require.NoError(c.t, err)
	require.Greater(c.t, version, c.highest[name])
	c.acknowledged[name], c.highest[name] = published{version, value}, version
}

// reach begins an operation and waits until a process reaches the step. The process continues when hit is closed.
func (c *crashTest) reach(step string, begin func() <-chan error) (done <-chan error, hit net.Conn, reporter int) {
	armed := filepath.Join(c.dir, "armed")
	c.armed.Store(true)
	require.NoError(c.t, os.WriteFile(armed, []byte(step), 0o600))
	done = begin()
	select {
	case hit = <-c.hits:
	case <-time.After(time.Minute):
		require.Fail(c.t, "the step was not reached", step)
	}
	require.NoError(c.t, os.Remove(armed))
	line, err := bufio.NewReader(hit).ReadString('\n')
	require.NoError(c.t, err)
	reporter, err = strconv.Atoi(strings.Fields(line)[0])
	require.NoError(c.t, err)
	return done, hit, reporter
}

// run executes one cell.
func (c *crashTest) run(x cell) {
	t := c.t
	before := c.ownerPID()
	c.actor("client")
	c.mustAsk("publish m", c.next)
	c.next++
	_, err := c.actor("client").ask("acquire m")
	require.NoError(t, err)
	if x.operation == "withdraw" {
		c.mustAsk("publish w", c.next)
	}
	if x.operation == "parts" {
		c.mustAsk("parts parts", c.next)
		c.next++
	}
	done, hit, reporter := c.reach(x.step, func() <-chan error { return c.begin(x.operation) })
	victim := c.victim(x, before, reporter)
	if victim != 0 {
		_ = syscall.Kill(victim, syscall.SIGKILL)
		require.Eventually(t, func() bool { return ended(victim) }, 20*time.Second, time.Millisecond)
	}
	hit.Close()
	if x.victim == "client" || x.victim == "publisher" {
		a := c.actors[x.victim]
		delete(c.actors, x.victim)
		defer func() { _ = a.cmd.Wait() }()
	}
	if x.victim == "owner" && x.operation != "upgrade" && victim != 0 {
		c.startOwner()
	}
	<-done
	if x.operation == "upgrade" && x.victim != "owner" { // it ends: the owner is replaced, or continues
		failed := c.socket + ".failed"
		require.Eventually(t, func() bool {
			_, err := os.Stat(failed)
			return err == nil || ended(before)
		}, time.Minute, time.Millisecond, "%+v", x)
		_ = os.Remove(failed)
	}
	lost := x.victim == "keeper" && x.step == "adopt begun" // the owner had been killed before
	if lost {
		c.acknowledged, c.highest = map[string]published{}, map[string]uint64{}
	}
	c.verify(x)
}

// victim returns the process to kill; 0 if it has ended.
func (c *crashTest) victim(x cell, owner, reporter int) int {
	switch x.victim {
	case "keeper":
		return c.keeperPID()
	case "client", "publisher":
		return c.actor(x.victim).cmd.Process.Pid
	case "owner":
		if x.operation == "adopt" {
			return reporter
		}
		return owner
	}
	if reporter != owner { // the successor has reported
		return reporter
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", owner, owner))
	if err != nil {
		return 0
	}
	for _, child := range strings.Fields(string(text)) {
		pid, _ := strconv.Atoi(child)
		if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil && !strings.Contains(string(line), "keep") {
			return pid
		}
	}
	return 0
}

// verify checks that everything that was acknowledged is there.
func (c *crashTest) verify(x cell) {
	t := c.t
	c.ownerPID()
	dev, err := host.Open()
	require.NoError(t, err)
	defer dev.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	u, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: c.socket, Devices: []driver.Device{dev}, Wait: true})
	require.NoError(t, err)
	defer u.Close()
	for name, want := range c.acknowledged {
		h, err := u.Acquire(ctx, name, endpoint.AcquireOptions{})
		if want.version == 0 {
			require.ErrorIs(t, err, endpoint.ErrNotFound, "%+v: %s was withdrawn", x, name)
			continue
		}
		require.NoError(t, err, "%+v: %s", x, name)
		require.GreaterOrEqual(t, h.Version(), max(want.version, c.highest[name]), "%+v: %s", x, name)
		got, err := valueOf(h.StateDict())
		require.NoError(t, err)
		if h.Version() == want.version {
			require.Equal(t, want.value, got, "%+v: %s", x, name)
		}
		c.highest[name] = h.Version()
		c.reads++
		require.NoError(t, h.Close())
	}
	if a := c.actors["client"]; a != nil {
		_, err := a.ask("check x")
		require.NoError(t, err, "%+v: the client's memory", x)
	}
}

// Each process is killed at each step. Acknowledged changes survive, numbers only increase, and readers keep their memory. The variable SHAREDTENSOR_CRASH_CYCLES sets the number of cells; a short run takes some at random.
func TestCrashMatrix(t *testing.T) {
	t.Parallel()
	testCrashMatrix(t, crashMatrix(), newCrashTest(t))
}

// A directory replaces the keeper.
func TestCrashMatrixDirectory(t *testing.T) {
	t.Parallel()
	_, path := directoryOf(t)
	withKeeper := func(x cell) bool { return x.victim == "keeper" || strings.HasPrefix(x.step, "keeper ") }
	testCrashMatrix(t, slices.DeleteFunc(crashMatrix(), withKeeper), newCrashTest(t, directory+path))
}

func testCrashMatrix(t *testing.T, cells []cell, c *crashTest) {
	cycles := 10
	if n, err := strconv.Atoi(os.Getenv("SHAREDTENSOR_CRASH_CYCLES")); err == nil {
		cycles = n
	}
	counts := map[cell]int{}
	var order []int
	for i := range cycles {
		if i%len(cells) == 0 {
			order = rand.Perm(len(cells))
		}
		x := cells[order[i%len(cells)]]
		c.run(x)
		counts[x]++
	}
	t.Logf("%d cycles, %d of %d cells, %d acknowledged versions read", cycles, len(counts), len(cells), c.reads)
	if cycles >= len(cells) {
		for _, x := range cells {
			t.Logf("| %s | %s | %d |", x.step, x.victim, counts[x])
		}
	}
}
