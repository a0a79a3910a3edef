package module

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// While memory is allocated nothing is copied, and the disk works.
func TestReadAheadLeadsFartherBeforeTheFirstByte(t *testing.T) {
	var r readAhead
	require.False(t, r.leads(readAheadHead-1))
	require.True(t, r.leads(readAheadHead))
	r.advance(0)
	require.False(t, r.leads(readAheadHead-1), "nothing is copied yet")
	r.advance(10)
	require.False(t, r.leads(10+readAheadLead-1))
	require.True(t, r.leads(10+readAheadLead))
}
