package policyfile_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/policyfile"
	"github.com/sharedtensor/sharedtensor/endpoint/access"
)

const example = `# a policy
rules:
  - users: [root, 1001]
    list: ["*"]
    publish: ["llm-*"]
    withdraw: ["llm-*"]
  - groups:
      - root
      - 2000
    info: true
    acquire: ["*"]
    call: [embed]
    offer: [embed]
restrict-owner: true
`

func TestParse(t *testing.T) {
	t.Parallel()
	p, err := policyfile.Parse([]byte(example))
	require.NoError(t, err)
	require.Equal(t, &access.Policy{RestrictOwner: true, Rules: []access.Rule{
		{UIDs: []uint32{0, 1001}, List: []string{"*"}, Publish: []string{"llm-*"}, Withdraw: []string{"llm-*"}},
		{GIDs: []uint32{0, 2000}, Info: true, Acquire: []string{"*"}, Call: []string{"embed"}, Offer: []string{"embed"}},
	}}, p)
	p, err = policyfile.Parse([]byte("rules: []\n"))
	require.NoError(t, err)
	require.Empty(t, p.Rules)
}

// A mistake in a policy is an error that names the place, never a rule that is silently ignored.
func TestParseErrors(t *testing.T) {
	t.Parallel()
	for want, text := range map[string]string{
		"the file is empty":               "# nothing\n",
		"field publsh not found":          "rules:\n - users: [1]\n   publsh: ['*']\n",
		"line 2: field rule":              "rules: []\nrule: []\n",
		"more than one document":          "rules: []\n---\nrules: []\n",
		"cannot unmarshal":                "rules: {users: [1]}\n",
		`line 2: user "no-such-user-1"`:   "rules:\n - users: [no-such-user-1]\n   info: true\n",
		`line 2: group "no-such-group-1"`: "rules:\n - groups: [no-such-group-1]\n   info: true\n",
		"line 2: use the name":            "rules:\n - users: [{}]\n   info: true\n",
		`user "-1"`:                       "rules:\n - users: [-1]\n   info: true\n",
		"rule 1: 4294967295 is not an id": "rules:\n - users: [4294967295]\n   info: true\n",
		"rule 1: it matches no process":   "rules:\n - info: true\n",
		"rule 1: it gives no right":       "rules:\n - users: [1]\n",
		"mapping key \"rules\" already":   "rules: []\nrules: []\n",
		"did not find expected":           "rules: [\n",
	} {
		_, err := policyfile.Parse([]byte(text))
		require.ErrorContains(t, err, want, "%s", text)
	}
}

func TestLoad(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "policy.yaml")
	_, err := policyfile.Load(path)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.WriteFile(path, []byte(example), 0o600))
	_, err = policyfile.Load(path)
	require.NoError(t, err)
	require.NoError(t, os.Chmod(path, 0o664))
	_, err = policyfile.Load(path)
	require.ErrorContains(t, err, "others may write it")
	require.NoError(t, os.Chmod(path, 0o600))
	if os.Geteuid() == 0 {
		require.NoError(t, os.Chown(path, 12345, 12345))
		_, err = policyfile.Load(path)
		require.ErrorContains(t, err, "belongs to uid 12345")
	}
	_, err = policyfile.Load(t.TempDir())
	require.ErrorContains(t, err, "not a regular file")

	big := filepath.Join(t.TempDir(), "big.yaml")
	require.NoError(t, os.WriteFile(big, []byte(strings.Repeat("#", policyfile.MaxBytes+1)), 0o600))
	_, err = policyfile.Load(big)
	require.ErrorContains(t, err, "more than 1048576 bytes")
}

// Aliases cannot make a small file expand without end.
func TestParseAliases(t *testing.T) {
	t.Parallel()
	text := "rules:\n - &r {users: [1], list: [a]}\n - *r\n"
	p, err := policyfile.Parse([]byte(text))
	require.NoError(t, err)
	require.Equal(t, p.Rules[0], p.Rules[1])

	var b strings.Builder
	b.WriteString("x0: &x0 [a,a,a,a,a,a,a,a,a]\n")
	for i := 1; i < 10; i++ {
		prev := string(rune('0' + i - 1))
		b.WriteString("x" + string(rune('0'+i)) + ": &x" + string(rune('0'+i)) + " [" + strings.Repeat("*x"+prev+",", 8) + "*x" + prev + "]\n")
	}
	_, err = policyfile.Parse([]byte(b.String() + "rules: *x9\n"))
	require.Error(t, err)
}
