package session_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint"
)

func destroyObject(t testing.TB, s *endpoint.Server, id string) {
	t.Helper()
	_, err := s.Destroy(context.Background(), id)
	require.NoError(t, err)
}
