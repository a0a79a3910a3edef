package demo

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// memfdPath begins the path of mappings that package host allocates.
const memfdPath = "/memfd:sharedtensor"

// modelMemory returns the memory of the model in the processes together, each page divided by the number of processes
// that map it, and the number of kernel memory objects that hold it. It fails if the system does not report it.
func modelMemory(pids []int) (pss int64, objects int, err error) {
	found := map[string]bool{}
	for _, pid := range pids {
		f, err := os.Open(fmt.Sprintf("/proc/%d/smaps", pid))
		if err != nil {
			return 0, 0, err
		}
		n, err := parseSmaps(f, found)
		if err = errors.Join(err, f.Close()); err != nil {
			return 0, 0, err
		}
		pss += n
	}
	return pss, len(found), nil
}

// parseSmaps parses smaps (proc_pid_smaps(5)): for each mapping, one line as in /proc/PID/maps, followed by lines of
// the form "Key: value". It returns the sum of Pss of the model's mappings and adds their objects, as device:inode.
func parseSmaps(r io.Reader, objects map[string]bool) (pss int64, err error) {
	ours, reported := false, false
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		switch {
		case len(fields) == 0:
		case !strings.HasSuffix(fields[0], ":"):
			if ours = len(fields) >= 6 && strings.HasPrefix(fields[5], memfdPath); ours {
				objects[fields[3]+":"+fields[4]] = true
			}
		case fields[0] == "Pss:":
			reported = true
			if !ours {
				continue
			}
			if len(fields) != 3 || fields[2] != "kB" {
				return 0, fmt.Errorf("line %q of smaps: want a number of kB", lines.Text())
			}
			n, err := strconv.ParseUint(fields[1], 10, 43)
			if err != nil {
				return 0, fmt.Errorf("line %q of smaps: %w", lines.Text(), err)
			}
			pss += int64(n) << 10
		}
	}
	if err := lines.Err(); err != nil {
		return 0, err
	}
	if !reported {
		return 0, errors.New("this system does not report the memory shares of processes")
	}
	return pss, nil
}
