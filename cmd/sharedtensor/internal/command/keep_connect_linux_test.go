package command

import (
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

// With --keep=connect the owner uses a keeper that others start, and starts none when it ends.
func TestServeKeepConnect(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	path := p.model("m.safetensors", 1)
	keep := func() *process {
		k := p.start(p.command("keep", "--socket", p.socket()+".keep", "--idle", "0", "--log"))
		eventually(t, "the keeper listens", func() bool {
			_, err := os.Lstat(p.socket() + ".keep")
			return err == nil
		})
		return k
	}
	first := keep()
	owner := p.serve("--keep=connect", "m="+path)
	first.signal(syscall.SIGKILL)
	first.exit()
	eventually(t, "the loss is reported", func() bool { return strings.Contains(owner.stderr.String(), "no keeper: published versions are lost") })
	require.NoError(t, os.Remove(p.socket()+".keep"))
	second := keep()
	eventually(t, "the new keeper has everything", func() bool { return strings.Contains(owner.stderr.String(), "the keeper holds everything again") })
	owner.signal(syscall.SIGKILL)
	owner.exit()
	owner = p.serve("--keep=connect", "m="+path)
	eventually(t, "the log has the adopted version", func() bool { return strings.Contains(owner.stderr.String(), "adopted name=m version=1") })
	require.NotContains(t, owner.stderr.String(), "loaded m:")
	second.signal(syscall.SIGTERM)
	require.Equal(t, cli.ExitOK, second.exit())
	owner.signal(syscall.SIGTERM)
	owner.exit()
}

// A path that leaves no room for the keeper's socket is refused with the lengths.
func TestServeKeepLongSocket(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	dir := t.TempDir()
	socket := dir + "/" + strings.Repeat("s", 105-len(dir))
	refused := p.start(p.command("serve", "--keep", "--socket", socket))
	require.Equal(t, cli.ExitFailure, refused.exit())
	require.Contains(t, refused.stderr.String(), "111 bytes; a socket path has at most 107")
}

// ls names versions that are not adopted, with the reason.
func TestListNotAdopted(t *testing.T) {
	t.Parallel()
	models := []endpoint.ModelInfo{{Name: "m", NotAdopted: []endpoint.NotAdopted{{Name: "m", Version: 3, Reason: "no such device", Bytes: 2048}}}}
	var b strings.Builder
	require.NoError(t, modelTable(models, false, time.Now()).Print(&b))
	require.Regexp(t, `m +3 +2\.0 KiB +- +- .* not adopted: no such device`, b.String())
}
