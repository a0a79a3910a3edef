package operation

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
)

// memoryLimit makes a control group with a limit of memory, and returns a command line that runs a program in it.
func (p *place) memoryLimit(bytes int64) []string {
	p.t.Helper()
	for dir, file := range map[string]string{"/sys/fs/cgroup/memory": "memory.limit_in_bytes", "/sys/fs/cgroup": "memory.max"} {
		group := filepath.Join(dir, filepath.Base(p.dir))
		if os.Mkdir(group, 0o755) != nil {
			continue
		}
		p.t.Cleanup(func() { p.eventually("the group is empty", func() bool { return os.Remove(group) == nil }) })
		if os.WriteFile(filepath.Join(group, file), []byte(fmt.Sprint(bytes)), 0o644) == nil {
			return []string{"sh", "-c", `echo $$ > "$0" && exec "$@"`, filepath.Join(group, "cgroup.procs")}
		}
	}
	drivertest.Needs(p.t, "cgroup", false, "this machine has no control group that limits memory")
	return nil
}

// Many small models fill the memory of a control group: the owner, or a client that publishes, refuses the next one and lives.
func TestSmallModelsUnderMemoryLimit(t *testing.T) {
	p := newPlace(t)
	limited := p.memoryLimit(96 << 20)
	path := p.model("m.safetensors", 2<<20)
	words := append(append([]string{}, limited...), program, "serve", "--socket", p.socket())
	for n := range 60 { // 120 MiB
		words = append(words, fmt.Sprintf("m%d=%s", n, path))
	}
	owner := p.start(exec.Command(words[0], words[1:]...))
	p.eventually("the owner has loaded what fits", func() bool {
		return !owner.running() || strings.Contains(owner.out.String(), "serving ")
	})
	require.True(t, owner.running(), "%v: %s", owner.cmd.ProcessState, owner.out)
	require.Contains(t, owner.out.String(), "not loaded")
	require.GreaterOrEqual(t, strings.Count(owner.out.String(), "msg=published"), 20)

	// Publishing clients in the same group.
	for range 10 {
		publish := append(append([]string{}, limited...), p.client("publish", "x="+path)...)
		out, err := output(exec.Command(publish[0], publish[1:]...))
		if err != nil {
			require.Contains(t, out, "sharedtensor: ", "the client was killed: %v", err)
		}
	}
	p.must("ping", "-c", "1")
	owner.stop(5 * time.Second)
}

// An owner with a read-only root, another TMPDIR and umask, and a removed socket.
func TestReadOnlyRoot(t *testing.T) {
	p := newPlace(t)
	p.needsNamespaces()
	path := p.model("m.safetensors", 1<<16)
	run := p.path("run")
	require.NoError(t, os.Mkdir(run, 0o700))
	socket := run + "/owner.sock"
	// The directory of the socket is the only place that can be written.
	script := `mount --bind "$1" "$1" && mount -o remount,ro,bind / / && mount -o remount,rw,bind "$1" "$1" && ! touch /tmp/st-not-writable && umask 0777 && export TMPDIR=/nonexistent && shift && exec "$@"`
	owner := p.start(exec.Command("unshare", "--mount", "--", "bash", "-c", script, "bash", run, program, "serve", "--socket", socket, "--keep", "m="+path))
	ls := func() (string, error) { return output(exec.Command(program, "ls", "--socket", socket)) }
	p.eventually("the model is served", func() bool { out, err := ls(); return err == nil && strings.Contains(out, "m") })
	require.NoError(t, os.Remove(socket))
	p.eventually("the socket is bound again", func() bool { _, err := ls(); return err == nil })
	owner.stop(5 * time.Second)
	keeper := p.start(exec.Command(program, "serve", "--socket", socket, "--keep"))
	p.eventually("the next owner serves the model", func() bool { out, err := ls(); return err == nil && strings.Contains(out, "m") })
	keeper.stop(5 * time.Second)
}
