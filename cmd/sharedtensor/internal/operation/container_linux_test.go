package operation

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

// container returns a command whose program is process 1 of new PID and mount namespaces, as in a container without an
// init. The kernel ends all of its processes with it.
func container(words ...string) *exec.Cmd {
	return exec.Command("unshare", append([]string{"--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--"}, words...)...)
}

// inside returns a command that runs in the PID and mount namespaces of a container.
func inside(c *process, words ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{"--target", strconv.Itoa(first(c)), "--pid", "--mount", "--"}, words...)...)
}

// first returns the id of process 1 of a container, as seen here.
func first(c *process) int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", c.cmd.Process.Pid, c.cmd.Process.Pid))
	require.NoError(c.t, err)
	pid, err := strconv.Atoi(strings.Fields(string(text))[0])
	require.NoError(c.t, err)
	return pid
}

// ownerPID returns the id of the owner in its own PID namespace.
func (p *place) ownerPID() int {
	p.t.Helper()
	client, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: p.socket()})
	require.NoError(p.t, err)
	defer client.Close()
	info, err := client.ServerInfo(context.Background())
	require.NoError(p.t, err)
	return int(info.PID)
}

// An owner that is process 1 of its container, or the child of an init, is replaced by upgrade: the container, the models
// and the keeper continue, and a stop of the container stops the successor.
func TestUpgradeInContainer(t *testing.T) {
	p := newPlace(t)
	p.needsNamespaces()
	path := p.model("m.safetensors", 1<<20)
	// The shell is an init that ends with its child.
	inits := map[string][]string{"process 1": nil, "child of an init": {"sh", "-c", `trap 'kill -TERM $child' TERM; "$@" & child=$!; wait $child; wait $child`, "init"}}
	for name, init := range inits {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			words := append(append([]string{}, init...), program, "serve", "--socket", p.socket(), "--keep", "m="+path)
			c := p.start(container(words...))
			p.eventually("the model is served", func() bool { out, err := p.try("ls"); return err == nil && strings.Contains(out, "m") })
			for n := range 3 {
				before := p.ownerPID()
				upgrade := p.client("upgrade")
				if n == 1 {
					upgrade = inside(c, upgrade...).Args // in the owner's container
				}
				out, err := output(exec.Command(upgrade[0], upgrade[1:]...))
				require.NoError(t, err, "upgrade %d: %s\n%s", n, out, c.out)
				require.NotEqual(t, before, p.ownerPID())
				time.Sleep(300 * time.Millisecond) // the old process ends if it does not stay
				require.True(t, c.running(), "the container ended: %s", c.out)
				require.Contains(t, p.must("ls"), "m")
			}
			require.Equal(t, 1, strings.Count(c.out.String(), "loaded m:"), "nothing is loaded again: %s", c.out)
			require.NoError(t, syscall.Kill(first(c), syscall.SIGTERM))
			c.ends(20 * time.Second)
			require.Contains(t, c.out.String(), "msg=stopped")
			require.Zero(t, c.cmd.ProcessState.ExitCode(), c.out)
		})
	}
}

// A container ends with a failure if the process that replaced the owner is killed, so that it is started again.
func TestKilledSuccessor(t *testing.T) {
	p := newPlace(t)
	p.needsNamespaces()
	c := p.start(container(program, "serve", "--socket", p.socket()))
	p.serving()
	p.must("upgrade")
	out, err := output(inside(c, "kill", "-KILL", strconv.Itoa(p.ownerPID())))
	require.NoError(t, err, out)
	c.ends(5 * time.Second)
	require.NotZero(t, c.cmd.ProcessState.ExitCode())
}

// upgrade signals the process that the kernel names: from the host the owner of a container, from another container none.
func TestUpgradeSignalsTheOwner(t *testing.T) {
	p := newPlace(t)
	p.needsNamespaces()
	_, err := exec.LookPath("nsenter")
	drivertest.Needs(t, "nsenter", err == nil, "nsenter is not installed")
	c := p.start(container(program, "serve", "--socket", p.socket()))
	p.serving()
	// In the other container, the id that the owner claims belongs to a process that counts its signals.
	count := `trap 'echo signalled' USR2; echo ready; while :; do sleep 0.05; done`
	other := p.start(container("bash", "-c", count))
	p.eventually("the other container runs", func() bool { return strings.Contains(other.out.String(), "ready") })
	out, err := output(inside(other, p.client("upgrade")...))
	require.Error(t, err, out)
	require.Contains(t, out, "not visible in this PID namespace")
	time.Sleep(200 * time.Millisecond)
	require.NotContains(t, other.out.String(), "signalled")
	require.True(t, c.running())
	require.Equal(t, 1, p.ownerPID())
}
