package transfer_test

import (
	"testing"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
)

func TestMain(m *testing.M) { fixture.Main(m) }

// The tests of memory pass with the stand-in for a GPU too.
func TestOnCUDA(t *testing.T) { fixture.OnCUDA(t, "TestClientAcquireSharesMemory") }
