//go:build !unix

package trusted

import "os"

func ownerOf(os.FileInfo) (uid int, known bool) { return 0, false }
