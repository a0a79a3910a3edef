package operation

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// threeContainers returns the commands of the page docs/production.md: of the keeper, the owner and the client.
func threeContainers(t *testing.T) [3]string {
	t.Helper()
	page, err := os.ReadFile("../../../../docs/production.md")
	require.NoError(t, err)
	m := regexp.MustCompile("(?s)Three containers.*?```sh\n(.*?)\n(.*?)\n(.*?)\n```").FindSubmatch(page)
	require.Len(t, m, 4)
	return [3]string{string(m[1]), string(m[2]), string(m[3])}
}

// pageContainer returns a command that runs a line of the page in new PID, mount, network and IPC namespaces, with its two
// directories.
func (p *place) pageContainer(line string) *exec.Cmd {
	script := `mount -t tmpfs tmpfs /run && mkdir /run/sharedtensor /run/models && mount --bind "$1" /run/sharedtensor && mount --bind "$2" /run/models &&
		PATH=$3:$PATH && eval "exec $4"`
	return exec.Command("unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--net", "--ipc", "--",
		"sh", "-c", script, "sh", p.path("sockets"), p.path("models"), filepath.Dir(program), line)
}

// The page's three containers survive the restart of each, and an upgrade of the owner.
func TestThreeContainers(t *testing.T) {
	p := newPlace(t)
	p.needsNamespaces()
	for _, dir := range []string{"sockets", "models"} {
		require.NoError(t, os.Mkdir(p.path(dir), 0o700))
	}
	p.model("models/llm.safetensors", 1<<20)
	lines := threeContainers(t)
	ls := func() string {
		out, err := output(p.pageContainer(lines[2]))
		if err != nil {
			return ""
		}
		return out
	}
	served := func(version string) {
		t.Helper()
		p.eventually("version "+version+" is served", func() bool { return regexp.MustCompile(`llm +` + version + `\b`).MatchString(ls()) })
	}
	restart := func(c *process, line string) *process {
		require.NoError(t, syscall.Kill(first(c), syscall.SIGKILL))
		c.ends(5 * time.Second)
		return p.start(p.pageContainer(line))
	}
	keeper := p.start(p.pageContainer(lines[0]))
	p.eventually("the keeper listens", func() bool { _, err := os.Stat(p.path("sockets/owner.sock.keep")); return err == nil })
	owner := p.start(p.pageContainer(lines[1]))
	served("1")

	owner = restart(owner, lines[1])
	served("1")
	require.NotContains(t, owner.out.String(), "loaded llm", "the keeper had the model")

	keeper = restart(keeper, lines[0])
	time.Sleep(time.Second) // the owner stores the model in the new keeper
	owner = restart(owner, lines[1])
	served("1")
	require.NotContains(t, owner.out.String(), "loaded llm", "the new keeper had the model")

	upgrade := strings.Replace(lines[2], "sharedtensor ls", "sharedtensor upgrade", 1)
	out, err := output(p.pageContainer(upgrade))
	require.Error(t, err, "from another container")
	require.Contains(t, out, "not visible")
	out, err = output(inside(owner, "sh", "-c", "PATH="+filepath.Dir(program)+":$PATH; exec "+upgrade))
	require.NoError(t, err, out)
	served("1")
	require.True(t, owner.running(), owner.out)
	require.NotContains(t, owner.out.String(), "loaded llm")
	require.True(t, keeper.running())

	owner = restart(owner, lines[1]) // of the container whose process was replaced
	served("1")
	require.NotContains(t, owner.out.String(), "loaded llm")
	require.NoError(t, syscall.Kill(first(owner), syscall.SIGTERM))
	owner.ends(15 * time.Second)
	require.Zero(t, owner.cmd.ProcessState.ExitCode())
}
