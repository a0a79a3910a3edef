package status

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/task/panics"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// sent returns the wire form of an error as another process receives it; decodeError converts it back.
func sent(t *testing.T, err error) *message.Error {
	t.Helper()
	body, encErr := message.Marshal(EncodeError(err))
	require.NoError(t, encErr)
	e := new(message.Error)
	require.NoError(t, message.Unmarshal(body, e))
	return e
}

// Every sentinel has a code and a word, and arrives as itself only.
func TestEverySentinelCrosses(t *testing.T) {
	t.Parallel()
	rows := Codes.Rows()
	classes := map[message.Code]int{}
	for _, row := range rows {
		if row.Class {
			classes[row.Code]++
		}
		local := fmt.Errorf("endpoint %q: %w", "x", row.Err)
		e := sent(t, local)
		remote := DecodeError(e)
		require.EqualError(t, remote, local.Error())
		require.Equal(t, row.Code, e.Code, row.Type)
		require.Equal(t, row.Type, e.Type)
		for _, other := range rows {
			require.Equal(t, errors.Is(local, other.Err), errors.Is(remote, other.Err), "%v as %v", row.Err, other.Err)
			require.Equal(t, row.Code == other.Code, errors.Is(remote, other.Code), "%v as %v", row.Err, other.Code)
		}
	}
	for code, n := range classes {
		require.Equal(t, 1, n, "rows that stand for %v", code)
	}
	e := sent(t, fmt.Errorf("x: %w", errors.New("else")))
	require.Equal(t, &message.Error{Code: message.CodeInternal, Type: "*errors.errorString", Message: "x: else"}, e)
}

// PROTOCOL.md lists the words.
func TestErrorWordsDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../wire/PROTOCOL.md")
	require.NoError(t, err)
	for _, row := range Codes.Rows() {
		require.Regexp(t, fmt.Sprintf("(?m)^\\| %d \\|.*`%s`", row.Code, row.Type), string(text))
	}
}

// Every exported error of the packages below has a row in Codes.
func TestEverySentinelHasCode(t *testing.T) {
	t.Parallel()
	known := map[string]bool{wire.ErrNotSent.Error(): true, "the version is older than the one in use": true} // never sent
	// Errors of placements are sent as UnsupportedError or ErrLimit. The last one has no receiver.
	for _, err := range []error{catalog.ErrNoPlace, catalog.ErrNoRoom, catalog.ErrHolderFull, catalog.ErrUnplaced} {
		known[err.Error()] = true
	}
	for _, row := range Codes.Rows() {
		known[row.Err.Error()] = true
	}
	for _, dir := range []string{".", "../..", "../../../driver", "../../../tensor", "../../../module", "../../../module/catalog", "../../../cache", "../../../task", "../../../task/panics", "../../../wire"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, name := range files {
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
			require.NoError(t, err)
			ast.Inspect(file, func(n ast.Node) bool {
				spec, ok := n.(*ast.ValueSpec)
				if !ok || len(spec.Values) != 1 || !strings.HasPrefix(spec.Names[0].Name, "Err") {
					return true
				}
				if call, ok := spec.Values[0].(*ast.CallExpr); ok && len(call.Args) == 1 {
					text := strings.Trim(call.Args[0].(*ast.BasicLit).Value, `"`)
					require.True(t, known[text], "%s: %s has no code", name, spec.Names[0].Name)
				}
				return true
			})
		}
	}
}

// Errors of configuration and of payloads that cannot be shared match their class on both sides.
func TestErrorClasses(t *testing.T) {
	t.Parallel()
	unsupported := &driver.UnsupportedError{Feature: "x"}
	for _, c := range []struct {
		err  error
		code message.Code
		also []error
	}{
		{Capability(unsupported), message.CodeCapability, []error{ErrCapability, errors.ErrUnsupported, message.CodeCapability}},
		{Unshareable(fmt.Errorf("export: %w", unsupported)), message.CodeCapability, []error{ErrCapability, errors.ErrUnsupported}},
		{Configuration(fmt.Errorf("%w: x", ErrInvalid)), message.CodeConfiguration, []error{ErrConfiguration, ErrInvalid, message.CodeConfiguration}},
		{Configuration(Capability(ErrInvalid)), message.CodeConfiguration, []error{ErrConfiguration, ErrInvalid, ErrCapability}},
	} {
		e := sent(t, c.err)
		remote := DecodeError(e)
		require.Equal(t, c.code, e.Code)
		for _, is := range c.also {
			require.ErrorIs(t, c.err, is)
			require.ErrorIs(t, remote, is)
		}
		require.EqualError(t, remote, c.err.Error())
	}
	require.Equal(t, os.ErrPermission, Unshareable(os.ErrPermission))
	require.Equal(t, os.ErrPermission, Configuration(os.ErrPermission))
	require.NoError(t, Unshareable(nil))
	require.NoError(t, Configuration(nil))
}

// The error of a task matches the same sentinels as the error of a call.
func TestTaskErrorsKeepCause(t *testing.T) {
	t.Parallel()
	failed := func(err error) error { return &task.Error{ID: "7f", Name: "load", State: task.Failed, Err: err} }
	lost := &StaleError{ObjectID: "a1", ServerID: "8c1f", Reason: StaleObjectMissing}
	for _, c := range []struct {
		err  error
		is   []error
		word string // word of the cause
	}{
		{failed(driver.ErrOutOfMemory), []error{task.ErrFailed, driver.ErrOutOfMemory, message.CodeOutOfMemory}, "out of memory"},
		{failed(fmt.Errorf("endpoint: %w", context.DeadlineExceeded)), []error{task.ErrFailed, context.DeadlineExceeded}, "deadline exceeded"},
		{failed(panics.New(driver.ErrOutOfMemory)), []error{task.ErrFailed, ErrPanic, driver.ErrOutOfMemory}, "panic"},
		{failed(failed(driver.ErrReadOnly)), []error{task.ErrFailed, driver.ErrReadOnly}, "failed"},
		{failed(lost), []error{task.ErrFailed, ErrStale, lost}, "stale"},
		{failed(&message.Error{Code: 400, Type: "mine", Message: "m"}), []error{task.ErrFailed, message.Code(400)}, "mine"},
		{failed(errors.New("else")), []error{task.ErrFailed, message.CodeInternal}, "*errors.errorString"},
		{&task.Error{ID: "7f", Name: "load", State: task.Cancelled, Err: context.Canceled}, []error{task.ErrCancelled, context.Canceled}, "canceled"},
	} {
		err := fmt.Errorf("task: %w", c.err)
		for range 2 { // the second time as a forwarded error
			e := sent(t, err)
			err = DecodeError(e)
			require.Equal(t, message.CodeTask, e.Code)
			require.Equal(t, c.word, e.Details().Cause.Type)
			require.NotEmpty(t, e.Details().Cause.Message)
			for _, is := range c.is {
				if stale, ok := is.(*StaleError); ok {
					var got *StaleError
					require.ErrorAs(t, err, &got)
					require.Equal(t, stale, got)
					continue
				}
				require.ErrorIs(t, err, is)
			}
			require.NotErrorIs(t, err, task.ErrNotFound)
			require.NotErrorIs(t, err, ErrClosed)
		}
	}
	e := sent(t, &task.Error{Name: "load", State: task.Cancelled, Err: task.ErrCancelled})
	require.Nil(t, e.Details().Cause)
	require.ErrorIs(t, DecodeError(e), context.Canceled)
}

func TestStaleErrorRoundTrip(t *testing.T) {
	t.Parallel()
	for _, reason := range []string{StaleObjectMissing, StaleServerMismatch} {
		want := &StaleError{ObjectID: "a1", ServerID: "8c1f", Reason: reason, Detail: "by uid 0"}
		e := sent(t, fmt.Errorf("object info: %w", want))
		remote := DecodeError(e)
		require.Equal(t, message.CodeStaleHandle, e.Code)
		var got *StaleError
		require.ErrorAs(t, remote, &got)
		require.Equal(t, want, got)
		require.ErrorIs(t, remote, ErrStale)
		require.ErrorIs(t, want, message.CodeStaleHandle)
	}
}

func TestNamesInErrorsTruncated(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("\x01", 1<<20)
	require.LessOrEqual(t, len(Shown(long)), 4*MaxShown+2)
	require.Less(t, len((&StaleError{ObjectID: long, ServerID: long}).Error()), 1000)
}
