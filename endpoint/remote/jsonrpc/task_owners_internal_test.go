package jsonrpc

import (
	"context"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/models"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
)

// A client cancels its own tasks. Clients that may write also cancel tasks of other programs, but not those of other
// clients of the gateway.
func TestTaskOwners(t *testing.T) {
	t.Parallel()
	as := func(name string, readOnly bool) context.Context {
		return rights.WithIdentity(t.Context(), rights.Identity{Method: rights.MethodToken, ID: name, Name: name, ReadOnly: readOnly})
	}
	writer, reader := as("writer", false), as("reader", true)
	var o taskOwners
	o.record(writer, "w")
	o.record(reader, "r")
	require.NoError(t, o.check(writer, "w"))
	require.NoError(t, o.check(reader, "r"))
	require.ErrorIs(t, o.check(writer, "r"), models.ErrRefused)
	require.ErrorIs(t, o.check(reader, "w"), models.ErrRefused)
	require.NoError(t, o.check(writer, "of a program on the host"))
	require.ErrorContains(t, o.check(reader, "of a program on the host"), "read-only")

	for i := range maxTaskOwners - 1 {
		o.record(writer, strconv.Itoa(i))
	}
	require.NoError(t, o.check(writer, "w"), "the oldest record was evicted")
	require.ErrorIs(t, o.check(writer, "r"), models.ErrRefused, "the second oldest one was not")
	require.Len(t, o.byID, maxTaskOwners)
	require.Len(t, o.order, maxTaskOwners)
	o.record(reader, "0") // an id is recorded once
	require.Len(t, o.order, maxTaskOwners)
}
