package command

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
)

// endOwner kills the process that serves at the end of the test, also if it is a successor of the one that was started.
func (p *place) endOwner() {
	client := p.dial()
	p.t.Cleanup(func() {
		if info, err := client.ServerInfo(context.Background()); err == nil {
			_ = syscall.Kill(int(info.PID), syscall.SIGKILL)
		}
	})
}

// upgrade replaces the owner, whose program must be a successor of the given process.
func (p *place) upgrade(pid int) int {
	p.t.Helper()
	var got upgraded
	require.NoError(p.t, json.Unmarshal([]byte(p.must("upgrade", "--json")), &got))
	require.Equal(p.t, pid, int(got.ReplacedPID))
	require.NotEqual(p.t, pid, int(got.PID))
	return int(got.PID)
}

func TestUpgrade(t *testing.T) {
	t.Parallel()
	for _, flags := range [][]string{nil, {"--keep"}} {
		t.Run(strings.Join(flags, ""), func(t *testing.T) {
			p := newPlace(t)
			if flags != nil {
				p.killKeeper()
			}
			path := p.model("m.safetensors", 1)
			owner := p.serve(append(flags, "--digests", "m="+path)...)
			p.endOwner()
			h := attach(t, p.socket(), "m")
			log := owner.stderr
			pid := p.upgrade(owner.cmd.Process.Pid)
			state, err := owner.cmd.Process.Wait() // exit also waits for the end of the log, which the successor has
			require.NoError(t, err)
			require.Equal(t, cli.ExitOK, state.ExitCode(), log.String())
			eventually(t, "the successor has adopted", func() bool { return strings.Contains(log.String(), "msg=adopted") })
			eventually(t, "the lease is renewed", h.Leased)
			require.Equal(t, 1, strings.Count(log.String(), "loaded m:"), "nothing is loaded again")
			require.Equal(t, digests(t, path), handleDigests(t, attach(t, p.socket(), "m")))

			// A changed file is loaded; a damaged one prevents the upgrade.
			require.NoError(t, os.WriteFile(path, []byte("damaged"), 0o600))
			text := p.fails(cli.ExitFailure, "upgrade")
			require.Contains(t, text, "continues to serve")
			require.NoError(t, os.Rename(p.model("new.safetensors", 2), path))
			p.upgrade(pid)
			eventually(t, "the changed file is version 2", func() bool { return attach(t, p.socket(), "m").Version() == 2 })
			require.Equal(t, digests(t, path), handleDigests(t, attach(t, p.socket(), "m")))
		})
	}
}

func TestUpgradeErrors(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	require.Contains(t, p.fails(cli.ExitFailure, "upgrade"), "no owner is serving")
	require.Contains(t, p.fails(cli.ExitUsage, "upgrade", "--within", "0s"), "must be positive")
	p.service() // an owner that does not handle the signal
	require.Contains(t, p.fails(cli.ExitFailure, "upgrade", "--within", "100ms"), "no new process serves after 100ms")
	require.Equal(t, cli.ExitOK, p.run("ping", "-c", "1").code)
}
