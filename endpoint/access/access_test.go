package access_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/access"
)

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"llm", "llm", true},
		{"llm", "llm2", false},
		{"llm", "", false},
		{"*", "", true},
		{"*", "org/model", true},
		{"llm-*", "llm-", true},
		{"llm-*", "llm-a/b", true},
		{"llm-*", "llm", false},
		{"*-lora", "a-lora", true},
		{"*-lora", "a-lora2", false},
		{"a*b", "ab", true},
		{"a*b", "aXb", true},
		{"a*b", "a", false},
		{"a*a", "a", false}, // the ends must not share a character
		{"a*b*c", "abbc", true},
		{"a*b*c", "acb", false},
		{"*x*", "axb", true},
		{"*x*", "ab", false},
		{"**", "a", true},
		{"a?", "ab", false}, // only the asterisk is special
		{"[a]", "a", false},
		{"a*bc*c", "abc", false},
	} {
		require.Equal(t, c.want, access.Match(c.pattern, c.name), "%q against %q", c.pattern, c.name)
	}
	long := strings.Repeat("a", 4096)
	require.False(t, access.Match(strings.Repeat("*a", 200)+"b", long)) // no exponential search
}

// A process has the union of the rights of the rules that match it.
func TestGrants(t *testing.T) {
	p := &access.Policy{Rules: []access.Rule{
		{UIDs: []uint32{1}, List: []string{"*"}, Publish: []string{"llm-*"}},
		{GIDs: []uint32{20, 30}, Acquire: []string{"vad"}, Publish: []string{"vad"}, Info: true},
		{UIDs: []uint32{2}, Call: []string{"embed"}, Offer: []string{"embed*"}},
	}}
	require.NoError(t, p.Check())
	both := p.Of(access.Subject{UID: 1, GIDs: []uint32{9, 30}})
	for _, c := range []struct {
		right access.Right
		name  string
		want  bool
	}{
		{access.Connect, "", true}, {access.Info, "", true}, {access.List, "any", true}, {access.Publish, "llm-1", true},
		{access.Publish, "vad", true}, {access.Publish, "other", false}, {access.Acquire, "vad", true}, {access.List, "vad", true}, {access.Acquire, "llm-1", false},
		{access.Withdraw, "vad", false}, {access.Call, "embed", false}, {access.Destroy, "", false}, {access.Right(99), "", false},
	} {
		require.Equal(t, c.want, both.May(c.right, c.name), "%v %q", c.right, c.name)
	}
	require.True(t, both.Everything(access.List))
	require.False(t, both.Everything(access.Publish))

	one := p.Of(access.Subject{UID: 2, GIDs: []uint32{1}}) // group 1 is not user 1
	require.True(t, one.May(access.Offer, "embed-2"))
	require.False(t, one.May(access.List, "any"))
	require.False(t, one.May(access.Info, ""))

	none := p.Of(access.Subject{UID: 3})
	all := access.All()
	for _, right := range access.Rights() {
		require.False(t, none.May(right, "llm-1"), right)
		require.True(t, all.May(right, "llm-1"), right)
	}
	require.False(t, new(access.Grants).May(access.Connect, ""))
}

func TestCheck(t *testing.T) {
	one := []uint32{1}
	for want, rule := range map[string]access.Rule{
		"matches no process":         {List: []string{"*"}},
		"gives no right":             {UIDs: one},
		"4294967295 is not an id":    {UIDs: []uint32{1<<32 - 1}, Info: true},
		"list: a pattern has 1":      {GIDs: one, List: []string{""}},
		"call: a pattern has 1":      {GIDs: one, Call: []string{strings.Repeat("a", access.MaxPattern+1)}},
		"acquire has 257 patterns":   {GIDs: one, Acquire: slices.Repeat([]string{"a"}, access.MaxPatterns+1)},
		"withdraw: a pattern has 1 ": {Everyone: true, Withdraw: []string{"a", ""}},
	} {
		p := access.Policy{Rules: []access.Rule{{UIDs: one, Info: true}, rule}}
		err := p.Check()
		require.ErrorIs(t, err, access.ErrPolicy)
		require.ErrorContains(t, err, "rule 2: ")
		require.ErrorContains(t, err, want)
	}
	require.NoError(t, new(access.Policy).Check(), "a policy without rules admits only the owner")
	many := access.Policy{Rules: make([]access.Rule, access.MaxRules+1)}
	require.ErrorContains(t, many.Check(), "1025 rules")
}

func TestAdmits(t *testing.T) {
	p := &access.Policy{Rules: []access.Rule{
		{UIDs: []uint32{3, 1}, Info: true}, {UIDs: []uint32{3}, GIDs: []uint32{7}, Info: true},
	}}
	uids, gids, everyone := p.Admits()
	require.Equal(t, []uint32{1, 3}, uids)
	require.Equal(t, []uint32{7}, gids)
	require.False(t, everyone)
	p.Rules = append(p.Rules, access.Rule{Everyone: true, Info: true})
	_, _, everyone = p.Admits()
	require.True(t, everyone)
}

func TestRightNames(t *testing.T) {
	var names []string
	for _, right := range access.Rights() {
		names = append(names, right.String())
	}
	require.Equal(t, []string{"connect", "info", "list", "acquire", "publish", "withdraw", "call", "offer", "destroy"}, names)
	require.Equal(t, "right 200", access.Right(200).String())
}

func FuzzMatch(f *testing.F) {
	f.Add("llm-*", "llm-1")
	f.Add("a*b*c", "abc")
	f.Fuzz(func(t *testing.T, pattern, name string) {
		if access.Match(pattern, name) && !strings.Contains(pattern, "*") {
			require.Equal(t, pattern, name)
		}
		require.True(t, access.Match("*", name))
		require.True(t, access.Match(name+"*", name))
		require.Equal(t, access.Match(pattern, name), byTable(pattern, name))
	})
}

// byTable is Match by the definition: matches[i] tells whether the pattern so far matches the first i bytes of the name.
func byTable(pattern, name string) bool {
	matches := make([]bool, len(name)+1)
	matches[0] = true
	for _, c := range []byte(pattern) {
		next := make([]bool, len(name)+1)
		for i := range next {
			if c == '*' {
				next[i] = matches[i] || i > 0 && next[i-1]
			} else {
				next[i] = i > 0 && matches[i-1] && name[i-1] == c
			}
		}
		matches = next
	}
	return matches[len(name)]
}
