package keeper

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/wire/message"
)

// The names of all descriptors fit one answer. Otherwise no owner could adopt what a full keeper holds.
func TestNamesOfFullKeeperFitOneAnswer(t *testing.T) {
	out := response{PID: 1 << 22, Room: 1}
	for i := range maxHeld {
		name := fmt.Sprint("v", i)
		out.Names = append(out.Names, name+strings.Repeat("x", maxName-len(name)))
	}
	require.NoError(t, checkName(out.Names[0]))
	body, err := message.Marshal(out)
	require.NoError(t, err)
	require.LessOrEqual(t, int64(len(body)), limits.Frame)
	var again response
	require.NoError(t, message.Unmarshal(body, &again))
	require.Len(t, again.Names, maxHeld)
}
