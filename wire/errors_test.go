package wire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCodeNames(t *testing.T) {
	require.Equal(t, "StaleHandle", CodeStaleHandle.String())
	require.Equal(t, "code 15", Code(15).String())
	require.Equal(t, "Closed", CodeClosed.Error())
	require.Equal(t, "ping", OpPing.String())
	require.Equal(t, "operation 0", Op(0).String())
	require.Equal(t, "operation 999", Op(999).String())
	require.Equal(t, "hello", KindHello.String())
	require.Equal(t, "kind 9", Kind(9).String())
	require.Equal(t, "withdrawn", EventWithdrawn.String())
	require.Equal(t, "event", EventKind(99).String())
}

func TestErrorIs(t *testing.T) {
	err := fmt.Errorf("acquire: %w", &Error{Code: CodeNotFound, Message: "no model is named x"})
	require.EqualError(t, err, "acquire: no model is named x")
	require.ErrorIs(t, err, CodeNotFound)
	require.NotErrorIs(t, err, CodeClosed)
	require.ErrorIs(t, err, &Error{Code: CodeNotFound})
	require.NotErrorIs(t, err, &Error{Code: CodeNotFound, Message: "another"})
	require.EqualError(t, &Error{Code: CodeTask}, "Task")
}

// Every row goes through and back, and answers for its sentinel and its code on the other side.
func TestCodeTable(t *testing.T) {
	gone, missing := errors.New("gone"), errors.New("missing")
	table := NewCodeTable(CodeRow{CodeNotFound, missing}, CodeRow{CodeStaleHandle, gone}, CodeRow{CodeUnavailable, os.ErrClosed})
	for _, row := range table.rows {
		local := fmt.Errorf("operation: %w", row.Err)
		sent := table.Encode(local)
		require.Equal(t, local.Error(), sent.Message)
		var received Error
		require.NoError(t, Unmarshal(mustMarshal(t, sent), &received))
		remote := table.Decode(&received)
		require.EqualError(t, remote, local.Error())
		require.ErrorIs(t, remote, row.Err)
		require.ErrorIs(t, remote, sent.Code)
		var e *Error
		require.ErrorAs(t, remote, &e)
	}
	require.Equal(t, CodeUnavailable, table.Encode(os.ErrClosed).Code, "the caller's rows come first")
	require.Equal(t, CodeInternal, table.Encode(errors.New("else")).Code)
	require.Equal(t, CodeTask, table.Encode(fmt.Errorf("x: %w", CodeTask)).Code)
	require.Equal(t, &Error{Code: CodeTask, Type: "T", Message: "x: m"}, table.Encode(fmt.Errorf("x: %w", &Error{Code: CodeTask, Type: "T", Message: "m"})))
	require.ErrorIs(t, table.Decode(&Error{Code: CodeDeadlineExceeded}), context.DeadlineExceeded)
	require.ErrorIs(t, table.Decode(&Error{Code: CodeClosed}), net.ErrClosed)
	require.Equal(t, &Error{Code: 999}, table.Decode(&Error{Code: 999}))
	require.Nil(t, table.Encode(nil))
	require.NoError(t, table.Decode(nil))
}
