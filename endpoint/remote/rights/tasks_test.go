package rights_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// A task belongs to the identity of its label. A task without one requires the right to control.
func TestTasksByLabel(t *testing.T) {
	t.Parallel()
	none := rights.Identity{Method: rights.MethodNone}
	clients := []rights.Identity{
		{Method: rights.MethodToken, ID: "1", Name: "alice"},
		{Method: rights.MethodToken, ID: "2", Name: "reader", ReadOnly: true},
		{Method: rights.MethodToken, ID: "3", Name: "limited", Rights: &rights.Set{}},
		{Method: rights.MethodToken, ID: "4", Name: "admin", Rights: &rights.Set{Control: true}},
		{Method: rights.MethodToken, ID: "5"}, // without a name
		{Method: rights.MethodToken, ID: "6"},
		{Method: rights.MethodCertificate, Name: "alice"},
		{Method: rights.MethodCertificate, Name: "spiffe://example.org/" + strings.Repeat("x", 2000)},
		{Method: rights.MethodCertificate, Name: "spiffe://example.org/" + strings.Repeat("x", 2001)},
		{Method: rights.MethodCertificate, Name: "\xff"}, {Method: rights.MethodCertificate, Name: "zoë"},
		{Method: rights.MethodToken, Name: "#" + strings.Repeat("0", 31)},
	}
	require.Empty(t, none.TaskLabel())
	require.Empty(t, rights.Identity{}.TaskLabel())
	require.NoError(t, none.AllowTask("7f", ""))
	labels := map[string]int{}
	for i, owner := range clients {
		label := owner.TaskLabel()
		require.LessOrEqual(t, len(label), message.MaxTaskLabel)
		require.NotContains(t, labels, label, "client %d", i)
		labels[label] = i
		require.NoError(t, none.AllowTask("7f", label))
		for j, client := range clients {
			err := client.AllowTask("7f", label)
			if i == j {
				require.NoError(t, err, "client %d", i)
				continue
			}
			require.ErrorIs(t, err, rights.ErrRight, "client %d and the task of %d", j, i)
		}
		require.Error(t, rights.Identity{}.AllowTask("7f", label))
	}
	for i, client := range clients {
		err := client.AllowTask("7f", "")
		if client.AllowControl() == nil {
			require.NoError(t, err, "client %d", i)
		} else {
			require.Error(t, err, "client %d", i)
		}
	}
	require.Equal(t, "token:alice", clients[0].TaskLabel())
	replaced := clients[0]
	replaced.ID = "9"
	require.NoError(t, replaced.AllowTask("7f", clients[0].TaskLabel()), "tokens with the same name are one client")
}
