package message

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/wire"
)

func TestCodeNames(t *testing.T) {
	require.Equal(t, "StaleHandle", CodeStaleHandle.String())
	require.Equal(t, "code 15", Code(15).String())
	require.Equal(t, "Closed", CodeClosed.Error())
	require.Equal(t, "ping", OpPing.String())
	require.Equal(t, "operation 0", Op(0).String())
	require.Equal(t, "operation 999", Op(999).String())
	require.Equal(t, "hello", wire.KindHello.String())
	require.Equal(t, "kind 11", wire.Kind(11).String())
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
