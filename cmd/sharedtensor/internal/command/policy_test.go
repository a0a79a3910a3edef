package command

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
)

// An owner restricts its own user by a policy file, reads it again on SIGHUP, and keeps the previous policy if the file is
// invalid. Each change is one line of the audit file.
func TestServePolicy(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	path := p.model("m.safetensors", 1)
	write := func(text string, args ...any) {
		require.NoError(t, os.WriteFile(p.file("policy.yaml"), fmt.Appendf(nil, text, args...), 0o600))
	}
	uid := os.Getuid()
	const restricted = "restrict-owner: true\nrules:\n - {users: [%d], list: ['*'], publish: [%q], info: true}\n"
	write(restricted, uid, "other")
	owner := p.serve("m="+path, "--policy", p.file("policy.yaml"), "--audit", p.file("audit.jsonl"))
	require.Contains(t, p.must("ls"), "m ")
	refused := p.run("publish", "m="+path)
	require.Equal(t, cli.ExitFailure, refused.code)
	require.Contains(t, refused.stderr, fmt.Sprintf(`the owner's policy does not let uid %d publish "m"`, uid))
	require.Contains(t, p.fails(cli.ExitFailure, "get", "m", "-o", p.file("copy")), `acquire "m"`)
	require.Contains(t, p.must("metrics"), `sharedtensor_policy_refusals_total{right="publish"} 1`)

	write(restricted, uid, "m")
	owner.signal(syscall.SIGHUP)
	eventually(t, "the policy is read again", func() bool { return strings.Contains(owner.stderr.String(), "the policy was loaded again") })
	p.must("publish", "m="+path)

	write("rules: [{users: [1], publsh: ['*']}]\n")
	owner.signal(syscall.SIGHUP)
	eventually(t, "the error is logged", func() bool { return strings.Contains(owner.stderr.String(), "field publsh not found") })
	p.must("publish", "m="+path)
	owner.signal(syscall.SIGTERM)
	require.Equal(t, cli.ExitOK, owner.exit())

	audit, err := os.ReadFile(p.file("audit.jsonl"))
	require.NoError(t, err)
	var published, policies, foreign int
	for line := range strings.Lines(string(audit)) {
		var change struct {
			Change, Name, Exe string
			UID, PID, Session int
		}
		require.NoError(t, json.Unmarshal([]byte(line), &change))
		require.Equal(t, uid, change.UID)
		require.True(t, strings.HasPrefix(change.Exe, "/"), change.Exe)
		switch change.Change {
		case "publish":
			require.Equal(t, "m", change.Name)
			published++
			if change.PID != owner.cmd.Process.Pid {
				foreign++
			}
		case "policy":
			policies++
		}
	}
	require.Equal(t, 1, policies)
	require.Equal(t, 2, foreign)
	require.GreaterOrEqual(t, published, 4, "the owner's own loads are changes too")
}

func TestServePolicyErrors(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	require.NoError(t, os.WriteFile(p.file("bad.yaml"), []byte("rules: [{info: true}]\n"), 0o600))
	require.Contains(t, p.fails(cli.ExitFailure, "serve", "--policy", p.file("bad.yaml")), "rule 1: it matches no process")
	require.Contains(t, p.fails(cli.ExitFailure, "serve", "--policy", p.file("missing.yaml")), "no such file")
	require.Contains(t, p.fails(cli.ExitUsage, "serve", "--policy", p.file("bad.yaml"), "--allow-uid", "1"), "exclude each other")
	require.NoFileExists(t, p.socket())
}

func TestConfigCheck(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	file := p.file("policy.yaml")
	require.NoError(t, os.WriteFile(file, []byte(`rules:
  - {users: [1001], list: ["*"], publish: ["llm-*", "vad"]}
  - {groups: [2000], info: true, acquire: ["*"]}
`), 0o600))
	text := p.must("config", "check", file)
	require.Contains(t, text, "uid 1001")
	require.Contains(t, text, "publish: llm-* vad")
	require.Contains(t, text, "gid 2000")
	require.Contains(t, text, "2 rules; the owner's user has every right")
	require.Equal(t, "RIGHT    NAMES\nconnect\nlist     *\npublish  llm-* vad\n", p.must("config", "check", file, "--user", "1001"))
	require.Contains(t, p.must("config", "check", file, "--user", "7", "--group", "2000"), "acquire  *")
	require.Contains(t, p.must("config", "check", file, "--user", "7"), "the owner refuses the connection")
	require.JSONEq(t, `[{"right":"connect"},{"right":"list","names":["*"]},{"right":"publish","names":["llm-*","vad"]}]`,
		p.must("config", "check", file, "--user", "1001", "--json"))
	require.Contains(t, p.fails(cli.ExitUsage, "config", "check", file, "--user", "no-such-user-1"), "no such user")
	require.NoError(t, os.WriteFile(file, []byte("rules: [{users: [1]}]\n"), 0o600))
	require.Contains(t, p.fails(cli.ExitFailure, "config", "check", file), "rule 1: it gives no right")
	require.Contains(t, p.fails(cli.ExitUsage, "config", "nonsense"), "no command")
}
