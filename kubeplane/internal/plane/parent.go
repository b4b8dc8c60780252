// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package plane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

var (
	errParentEnded = errors.New("the parent process ended")
	errStdinClosed = errors.New("standard input was closed")
)

// endWithParent calls stop when the process that started us ends, or closes the pipe that is our standard input.
//
// A pidfd, not Pdeathsig: that one follows the parent's thread, and the threads of Go programs come and go.
func endWithParent(stop context.CancelCauseFunc) error {
	parent := os.Getppid()
	pidfd, err := unix.PidfdOpen(parent, 0)
	if err != nil {
		return fmt.Errorf("watching the parent process %d: %w", parent, err)
	}
	if os.Getppid() != parent { // it ended in between, and its PID may be reused already
		stop(errParentEnded)
	}
	go func() {
		defer func() { _ = unix.Close(pidfd) }()
		for {
			ended := unix.PollFd{Fd: int32(pidfd), Events: unix.POLLIN} //nolint:gosec // a file descriptor is a small number
			_, err := unix.Poll([]unix.PollFd{ended}, -1)
			if !errors.Is(err, unix.EINTR) {
				stop(errParentEnded)
				return
			}
		}
	}()
	// Only the end of a pipe is meaningful: /dev/null, which most callers pass on, is always at its end.
	if info, err := os.Stdin.Stat(); err == nil && info.Mode()&os.ModeNamedPipe != 0 {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin) // an error ends it just as well
			stop(errStdinClosed)
		}()
	}
	return nil
}
