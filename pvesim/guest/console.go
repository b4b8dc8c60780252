// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"fmt"
	"strings"
	"sync"
)

// consoleLines is the number of lines kept: enough for a few boots.
const consoleLines = 500

// console is a serial console that keeps its last lines.
type console struct {
	mu    sync.Mutex
	lines []string
}

func (c *console) printf(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lines = append(c.lines, fmt.Sprintf(format, args...))
	if len(c.lines) > consoleLines {
		c.lines = append([]string(nil), c.lines[len(c.lines)-consoleLines/2:]...)
	}
}

// String returns the lines, each terminated by a newline.
func (c *console) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.lines) == 0 {
		return ""
	}
	return strings.Join(c.lines, "\n") + "\n"
}
