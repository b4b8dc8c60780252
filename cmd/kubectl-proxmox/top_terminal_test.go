// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"context"
	"io"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/fleet"
)

// screen collects the output of a program on a pseudo terminal.
type screen struct {
	*WithT
	master *os.File
	output *gbytes.Buffer
	rows   uint16
}

// shows changes the size of the window, so the program draws everything again, and waits for a text.
func (s *screen) shows(want string) {
	s.Eventually(func(g Gomega) {
		before := len(s.output.Contents())
		s.rows = 81 - s.rows
		g.Expect(pty.Setsize(s.master, &pty.Winsize{Rows: s.rows, Cols: 150})).To(Succeed())
		g.Expect(syscall.Kill(os.Getpid(), syscall.SIGWINCH)).To(Succeed())
		g.Eventually(func() string { return visible(string(s.output.Contents()[before:])) }).WithTimeout(10 * time.Second).Should(ContainSubstring(want))
	}).Should(Succeed())
}

// TestTopTerminal runs the live view on a pseudo terminal. It is not parallel, because it sends signals to the test process.
func TestTopTerminal(t *testing.T) {
	g := NewWithT(t)
	master, slave, err := pty.Open()
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { _, _ = master.Close(), slave.Close() }()
	s := &screen{WithT: g, master: master, output: gbytes.NewBuffer(), rows: 40}
	g.Expect(pty.Setsize(master, &pty.Winsize{Rows: s.rows, Cols: 150})).To(Succeed())
	go func() { _, _ = io.Copy(s.output, master) }()
	done := make(chan error, 1)
	go func() {
		read := func(context.Context) (fleet.Map, error) { return sampleFleet(), nil }
		done <- runTop(t.Context(), read, topOptions{interval: time.Second, order: "name"}, slave, slave)
	}()

	for _, step := range []struct{ shown, keys string }{{"VM 20001", "\r"}, {"host home/pve1", "\x1b"}, {"VM 20002", "q"}} {
		s.shows(step.shown)
		_, err := master.WriteString(step.keys)
		g.Expect(err).NotTo(HaveOccurred())
	}
	g.Eventually(done).Should(Receive(BeNil()))
}
