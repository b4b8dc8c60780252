// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/fleet"
)

// screen collects the output of a program on a pseudo terminal.
type screen struct {
	*WithT
	master *os.File
	mu     sync.Mutex
	output bytes.Buffer
	rows   uint16
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.output.Write(p)
}

// shows changes the size of the window, so the program draws everything again, and waits for a text.
func (s *screen) shows(want string) {
	s.Eventually(func(g Gomega) {
		s.mu.Lock()
		before := s.output.Len()
		s.mu.Unlock()
		s.rows = 81 - s.rows
		g.Expect(pty.Setsize(s.master, &pty.Winsize{Rows: s.rows, Cols: 150})).To(Succeed())
		g.Expect(syscall.Kill(os.Getpid(), syscall.SIGWINCH)).To(Succeed())
		g.Eventually(func() string {
			s.mu.Lock()
			defer s.mu.Unlock()
			return visible(string(s.output.Bytes()[before:]))
		}).WithTimeout(10 * time.Second).Should(ContainSubstring(want))
	}).Should(Succeed())
}

func (s *screen) types(keys string) {
	_, err := s.master.WriteString(keys)
	s.Expect(err).NotTo(HaveOccurred())
}

// TestTopTerminal runs the live view on a pseudo terminal. It is not parallel, because it sends signals to the test process.
func TestTopTerminal(t *testing.T) {
	g := NewWithT(t)
	master, slave, err := pty.Open()
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { _, _ = master.Close(), slave.Close() }()
	s := &screen{WithT: g, master: master, rows: 40}
	g.Expect(pty.Setsize(master, &pty.Winsize{Rows: s.rows, Cols: 150})).To(Succeed())
	go func() { _, _ = io.Copy(s, master) }()
	done := make(chan error, 1)
	go func() {
		read := func(context.Context) (fleet.Map, error) { return sampleFleet(), nil }
		done <- runTop(t.Context(), read, topOptions{interval: time.Second, order: "name"}, slave, slave)
	}()

	s.shows("VM 20001")
	s.shows("waits pve1: 1 CPUs free, 2 required")
	s.types("s")
	s.shows("sort: CPUs")
	s.types("\r")
	s.shows("host home/pve1")
	s.types("\r")
	s.shows("nodeclaim default-a")
	s.types("\x1b")
	s.shows("host home/pve1")
	s.types("q")
	g.Eventually(done).Should(Receive(BeNil()))
}
