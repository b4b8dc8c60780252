// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"bytes"
	"cmp"
	"context"
	"os/exec"
	"sync"
	"time"
)

// probeTimeout limits how long a kernel may take to boot with KVM until it finds no root file system.
const probeTimeout = 15 * time.Second

// probeKVM reports whether a kernel boots with KVM. On some machines /dev/kvm opens and accepts a VM, but kernels hang.
func (r *Runtime) probeKVM() bool {
	kernel := cmp.Or(r.options.ProbeKernel, r.options.Kernel)
	if kernel == "" {
		return false
	}
	return bootsKernel(exec.CommandContext(context.Background(), r.qemu, "-accel", "kvm", "-cpu", "host", "-m", "256", "-nodefaults", "-no-user-config", "-display", "none",
		"-no-reboot", "-serial", "stdio", "-kernel", kernel, "-append", "console=ttyS0 panic=-1"))
}

// bootsKernel reports whether a command prints the message of a kernel without a root file system.
func bootsKernel(cmd *exec.Cmd) bool {
	output := &watchedOutput{text: []byte("Kernel panic"), found: make(chan struct{})}
	cmd.Stdout = output
	p, err := startProcess(cmd)
	if err != nil {
		return false
	}
	defer p.kill()
	select {
	case <-output.found:
		return true
	case <-p.done:
		return output.isFound()
	case <-time.After(probeTimeout):
		return false
	}
}

// watchedOutput closes found when the text has been written.
type watchedOutput struct {
	text  []byte
	found chan struct{}

	once sync.Once
	mu   sync.Mutex
	all  []byte
}

func (o *watchedOutput) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all = append(o.all, p...)
	if bytes.Contains(o.all, o.text) {
		o.once.Do(func() { close(o.found) })
	}
	return len(p), nil
}

func (o *watchedOutput) isFound() bool {
	select {
	case <-o.found:
		return true
	default:
		return false
	}
}
