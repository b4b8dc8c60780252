// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// vcpuThread matches the names of QEMU's vCPU threads.
var vcpuThread = regexp.MustCompile(`^CPU (\d+)/KVM$`)

// pin pins each vCPU to its CPU in the mark.
func (h Host) pin(vmid int, c conf, m ownership.Mark) error {
	if err := h.checkPins(c, m); err != nil {
		return fmt.Errorf("pinning: %w", err)
	}
	threads, err := h.threads(vmid, len(m.Pin))
	if err != nil {
		return fmt.Errorf("pinning: %w", err)
	}
	for vcpu, cpu := range m.Pin {
		if err := h.Affinity(threads[vcpu], cpu); err != nil {
			return fmt.Errorf("pinning vCPU %d to CPU %d: %w", vcpu, cpu, err)
		}
	}
	h.logf("pinned vCPUs to the CPUs %v", m.Pin)
	return nil
}

// checkPins validates the mark's CPUs against the VM and the host.
func (h Host) checkPins(c conf, m ownership.Mark) error {
	if len(m.Pin) != c.vcpus {
		return fmt.Errorf("the notes list %d CPUs, the VM has %d vCPUs", len(m.Pin), c.vcpus)
	}
	granted, err := proxmox.ParseCPUs(m.CPUs)
	if err != nil {
		return err
	}
	online, err := h.readCPUs(cpuDir + "/online")
	if err != nil {
		return err
	}
	seen := map[int]bool{}
	for _, cpu := range m.Pin {
		switch {
		case seen[cpu]:
			return fmt.Errorf("CPU %d is listed twice", cpu)
		case !granted.Contains(cpu):
			return fmt.Errorf("CPU %d is not one of the VM's dedicated CPUs, %s", cpu, m.CPUs)
		case !online.Contains(cpu):
			return fmt.Errorf("the host has no CPU %d online", cpu)
		}
		seen[cpu] = true
	}
	return nil
}

// threads returns the threads by vCPU. They usually exist when Proxmox runs the hookscript; on a host under load they may
// appear later.
func (h Host) threads(vmid, vcpus int) (map[int]int, error) {
	content, err := os.ReadFile(h.path(fmt.Sprintf("/run/qemu-server/%d.pid", vmid)))
	if err != nil {
		return nil, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil {
		return nil, fmt.Errorf("reading the VM's process ID: %w", err)
	}
	for attempt := 0; ; attempt++ {
		found, err := h.threadsOf(pid)
		if err == nil && len(found) >= vcpus {
			return found, nil
		}
		if attempt == h.Attempts {
			return nil, errors.Join(fmt.Errorf("found %d threads of vCPUs, want %d", len(found), vcpus), err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func (h Host) threadsOf(pid int) (map[int]int, error) {
	names, err := filepath.Glob(h.path(fmt.Sprintf("/proc/%d/task/*/comm", pid)))
	if err != nil {
		return nil, err
	}
	found := map[int]int{}
	for _, name := range names {
		content, err := os.ReadFile(name)
		if err != nil {
			continue // the thread has ended
		}
		match := vcpuThread.FindStringSubmatch(strings.TrimSpace(string(content)))
		if match == nil {
			continue
		}
		vcpu, _ := strconv.Atoi(match[1])
		if found[vcpu], err = strconv.Atoi(filepath.Base(filepath.Dir(name))); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// setAffinity pins a thread to one CPU.
func setAffinity(thread, cpu int) error {
	var set unix.CPUSet
	set.Set(cpu)
	return unix.SchedSetaffinity(thread, &set)
}
