package keeper_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// overlapSteps are the steps at which an owner replaces its journal.
var overlapSteps = []string{"compact begun", "compact copied", "compact stored", "compact replaced", "store cleaned"}

// fill publishes until the owner replaces its journal.
func (c *crashTest) fill(name string) <-chan error {
	done := make(chan error, 1)
	a, value := c.actor("publisher"), c.next
	c.next++
	delete(c.acknowledged, name)
	go func() {
		version, err := a.ask(fmt.Sprintf("fill %s %d", name, value))
		if err == nil {
			c.acknowledged[name] = published{version, value}
		}
		done <- err
	}()
	return done
}

// secondOwner starts another owner of the same store on another socket.
func (c *crashTest) secondOwner(socket string) (cmd *exec.Cmd, exited chan error) {
	args := c.args
	if len(args) == 0 {
		args = []string{c.socket + ".keep"}
	}
	cmd = c.command(args...)
	cmd.Env = append(cmd.Env, "SHARED_TENSOR_TEST_OWNER="+socket)
	cmd.Stdin = c.stdin
	require.NoError(c.t, cmd.Start())
	exited = make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	return cmd, exited
}

// refused checks that a second owner fails because of the first one.
func (c *crashTest) refused(exited chan error, text string) {
	select {
	case err := <-exited:
		require.Error(c.t, err, text)
	case <-time.After(20 * time.Second):
		require.Fail(c.t, "the second owner serves", text)
	}
	log, err := os.ReadFile(c.log.Name())
	require.NoError(c.t, err)
	lines := strings.Split(strings.TrimSpace(string(log)), "\n")
	require.Regexp(c.t, "uses|replace|owner is serving|in use", lines[len(lines)-1], text)
}

// Two owners of one store overlap at every step of replacing the journal. The second one is refused while the first one
// runs. When the first one is killed, the next one has every acknowledged version.
func TestCrashMatrixTwoOwners(t *testing.T) {
	t.Parallel()
	for _, store := range []string{"keeper", "directory"} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			var args []string
			if store == "directory" {
				_, path := directoryOf(t)
				args = []string{directory + path}
			}
			c := newCrashTest(t, args...)
			for _, step := range overlapSteps {
				for _, killed := range []bool{false, true} {
					c.overlap(step, killed)
				}
			}
			if store == "keeper" {
				for _, killed := range []bool{false, true} {
					c.overlapFetch(killed)
				}
			}
		})
	}
}

// overlap starts a second owner while the first one is at a step.
func (c *crashTest) overlap(step string, kill bool) {
	text := fmt.Sprintf("%s, killed: %v", step, kill)
	first := c.ownerPID()
	c.mustAsk("publish n", c.next)
	done, hit, _ := c.reach(step, func() <-chan error { return c.fill("m") })
	_, exited := c.secondOwner(c.socket + ".2")
	c.refused(exited, text)
	if kill {
		_ = syscall.Kill(first, syscall.SIGKILL)
		require.Eventually(c.t, func() bool { return ended(first) }, 20*time.Second, time.Millisecond)
		c.startOwner()
	}
	hit.Close()
	<-done
	c.verify(cell{operation: "overlap", step: text})
}

// overlapFetch lets the first owner replace its journal between the list and the fetch of a second one.
func (c *crashTest) overlapFetch(kill bool) {
	text := fmt.Sprintf("store listed, killed: %v", kill)
	first := c.ownerPID()
	c.mustAsk("publish n", c.next)
	var exited chan error
	var second *exec.Cmd
	var hit net.Conn
	_, hit, _ = c.reach("store listed", func() <-chan error {
		second, exited = c.secondOwner(c.socket + ".2")
		return nil
	})
	require.NoError(c.t, <-c.fill("m"))
	if !kill {
		hit.Close()
		c.refused(exited, text)
		c.verify(cell{operation: "overlap", step: text})
		return
	}
	_ = syscall.Kill(first, syscall.SIGKILL)
	require.Eventually(c.t, func() bool { return ended(first) }, 20*time.Second, time.Millisecond)
	hit.Close()
	require.Eventually(c.t, func() bool {
		_, err := os.Lstat(filepath.Join(c.socket + ".2"))
		return err == nil
	}, 20*time.Second, time.Millisecond)
	before := c.socket
	c.socket += ".2"
	want := c.acknowledged
	for name, v := range want {
		require.Contains(c.t, c.versions(name), v.version, text)
	}
	c.socket = before
	_ = second.Process.Kill()
	<-exited
	c.verify(cell{operation: "overlap", step: text})
}

// The keeper ends right before an upgrade. The successor stores the versions of the old owner in a new keeper, and reports
// no loss.
func TestUpgradeAfterKeeperEnded(t *testing.T) {
	t.Parallel()
	c := newCrashTest(t)
	for round := range 3 {
		before := c.ownerPID()
		c.mustAsk("publish m", c.next)
		c.next++
		end(t, c.keeperPID())
		require.NoError(t, syscall.Kill(before, syscall.SIGUSR2))
		require.Eventually(t, func() bool { return ended(before) }, 20*time.Second, time.Millisecond)
		if round == 2 {
			c.killOwner()
		}
		c.verify(cell{operation: "upgrade", step: "without a keeper"})
	}
	log, err := os.ReadFile(c.log.Name())
	require.NoError(t, err)
	require.NotContains(t, string(log), "the versions that it held are lost")
}
