package command

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/module"
)

// A publication fails at once if its owner ends. It does not wait for another owner.
func TestPublishOwnerEnds(t *testing.T) {
	p := newPlace(t)
	large := p.file("large.safetensors")
	require.NoError(t, module.SynthesizeFile(large, module.Synthetic{Tensors: 4, Bytes: 64 << 20}))
	owner := p.serve()
	publisher := p.start(p.command("publish", "a="+p.model("a.safetensors", 1), "b="+large, "c="+large, "d="+large, "--timeout", "1m"))
	require.Regexp(t, `^published a version 1`, publisher.line())
	owner.signal(syscall.SIGKILL)
	start := time.Now()
	require.Equal(t, cli.ExitFailure, publisher.exit())
	require.Contains(t, publisher.stderr.String(), "the owner ended")
	require.Less(t, time.Since(start), 20*time.Second, "before the owner's time limit")
}
