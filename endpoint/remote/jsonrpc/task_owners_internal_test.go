package jsonrpc

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
)

// A task belongs to the identity that submitted it, also after a restart of the gateway, with a store. A task without a record
// requires the right to control.
func TestTaskOwners(t *testing.T) {
	t.Parallel()
	as := func(id rights.Identity) context.Context { return rights.WithIdentity(t.Context(), id) }
	token := func(name string, readOnly bool, set *rights.Set) context.Context {
		return as(rights.Identity{Method: rights.MethodToken, ID: name, Name: name, ReadOnly: readOnly, Rights: set})
	}
	writer, reader := token("writer", false, nil), token("reader", true, nil)
	limited, admin := token("limited", false, &rights.Set{}), token("admin", false, &rights.Set{Control: true})
	nobody := as(rights.Identity{Method: rights.MethodNone})
	dir := t.TempDir()
	o, err := openTaskOwners(dir)
	require.NoError(t, err)
	require.NoError(t, o.record(writer, "w"))
	require.NoError(t, o.record(reader, "r"))
	require.NoError(t, o.record(limited, "l"))
	require.NoError(t, o.Close())
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tasks.jsonl"), append(read(t, dir), `{"task":"cut`...), 0o600))
	without, err := openTaskOwners("")
	require.NoError(t, err)
	for run := range 2 {
		o, err = openTaskOwners(dir)
		require.NoError(t, err)
		for _, row := range []struct {
			sender context.Context
			may    string
		}{{writer, "wh"}, {reader, "r"}, {limited, "l"}, {admin, "h"}, {nobody, "wrlh"}} {
			for _, task := range "wrlh" {
				err := o.check(row.sender, string(task))
				require.Equal(t, !strings.ContainsRune(row.may, task), err != nil, "run %d: %v of %c: %v", run, rights.Sender(row.sender).Name, task, err)
				if err != nil {
					require.True(t, errors.Is(err, rights.ErrRight) || errors.Is(err, rights.ErrReadOnly), "%v", err)
				}
			}
		}
		require.Error(t, without.check(limited, "l"), "without a store, only administrators see tasks of earlier runs")
		require.NoError(t, o.Close())
	}
}

// The number of records is limited, in memory and in the file.
func TestTaskOwnersAreBounded(t *testing.T) {
	t.Parallel()
	writer := rights.WithIdentity(t.Context(), rights.Identity{Method: rights.MethodToken, Name: "writer"})
	dir := t.TempDir()
	o, err := openTaskOwners(dir)
	require.NoError(t, err)
	defer o.Close()
	for i := range 2*maxTaskOwners + 10 {
		require.NoError(t, o.record(writer, strconv.Itoa(i)))
	}
	require.Len(t, o.byID, maxTaskOwners)
	require.Len(t, o.order, maxTaskOwners)
	require.LessOrEqual(t, o.lines, 2*maxTaskOwners)
	require.NoError(t, o.record(writer, strconv.Itoa(2*maxTaskOwners)))
	require.Len(t, o.order, maxTaskOwners, "a task is recorded once")
}

// A record after a failed write is stored, also if the failed one left an incomplete line.
func TestTaskOwnersAfterFailedWrite(t *testing.T) {
	t.Parallel()
	writer := rights.WithIdentity(t.Context(), rights.Identity{Method: rights.MethodToken, Name: "writer", Rights: &rights.Set{}})
	dir := t.TempDir()
	o, err := openTaskOwners(dir)
	require.NoError(t, err)
	_, err = o.file.WriteString(`{"task":"cut`)
	require.NoError(t, err)
	readOnly, err := os.Open(o.path)
	require.NoError(t, err)
	file := o.file
	o.file = readOnly
	require.ErrorIs(t, o.record(writer, "failed"), endpoint.ErrUnavailable)
	require.NoError(t, readOnly.Close())
	o.file = file
	require.NoError(t, o.record(writer, "stored"))
	require.NoError(t, o.Close())
	o, err = openTaskOwners(dir)
	require.NoError(t, err)
	require.NoError(t, o.check(writer, "stored"))
	require.NoError(t, o.Close())
}

func read(t *testing.T, dir string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "tasks.jsonl"))
	require.NoError(t, err)
	return text
}
