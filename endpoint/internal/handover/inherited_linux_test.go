package handover

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// A program that imports the package keeps its environment. Only a request for the predecessor takes the variable out, so that
// children do not get it.
func TestImportLeavesEnvironment(t *testing.T) {
	const child = "SHAREDTENSOR_TEST_INHERITED"
	if os.Getenv(child) != "" {
		_, before := os.LookupEnv(variable)
		found := Inherited()
		_, after := os.LookupEnv(variable)
		fmt.Println("before", before, "after", after, "found", found != nil)
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestImportLeavesEnvironment$")
	cmd.Env = append(os.Environ(), child+"=1", variable+"=99:/nowhere")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "before true after false found false")
}
