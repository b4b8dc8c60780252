// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"k8s.io/utils/cpuset"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/hosttopology"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// topologyCommand is the first argument that prints or publishes the topology of the host.
const topologyCommand = "topology"

// runTopology prints the topology, or publishes it in the notes of the host.
func (h Host) runTopology(ctx context.Context, args []string) error {
	publish := slices.Equal(args, []string{"--publish"})
	if len(args) > 0 && !publish {
		return fmt.Errorf("found the arguments %q, want %s or %s --publish", args, topologyCommand, topologyCommand)
	}
	topology, err := h.readTopology()
	if err != nil {
		return fmt.Errorf("reading the topology of the host: %w", err)
	}
	if !publish {
		_, err = fmt.Fprintln(h.Out, topology.Line(h.Name))
		return err
	}
	return h.publish(ctx, topology)
}

// refreshTopology publishes the topology again if it was published before and has changed. A failure must not prevent the
// start of a VM.
func (h Host) refreshTopology(ctx context.Context) {
	content, err := os.ReadFile(h.path(filepath.Join("/etc/pve/nodes", h.Name, "config")))
	if err != nil {
		return // the host has no notes
	}
	notes := parseConf(string(content)).notes
	if !hosttopology.HasLine(notes) {
		return
	}
	topology, err := h.readTopology()
	if err == nil && !topology.IsPublished(notes, h.Name) {
		ctx, cancel := context.WithTimeout(ctx, h.Timeout)
		defer cancel()
		err = h.publish(ctx, topology)
	}
	if err != nil {
		h.logf("publishing the topology of the host failed: %v", err)
	}
}

// publish writes the topology into the notes of the host and keeps the rest of the notes.
func (h Host) publish(ctx context.Context, topology hosttopology.Topology) error {
	path := "/nodes/" + h.Name + "/config"
	content, err := h.Pvesh(ctx, "get", path, "--output-format", "json")
	if err != nil {
		return fmt.Errorf("reading the notes of the host: %w", err)
	}
	var config struct{ Description, Digest string }
	if err := json.Unmarshal(content, &config); err != nil {
		return fmt.Errorf("reading the notes of the host: %w", err)
	}
	if topology.IsPublished(config.Description, h.Name) {
		h.logf("the notes of host %s contain this topology already", h.Name)
		return nil
	}
	args := []string{"set", path, "--description", topology.Notes(config.Description, h.Name)}
	if config.Digest != "" { // fails if another user changes the notes at the same time
		args = append(args, "--digest", config.Digest)
	}
	if _, err := h.Pvesh(ctx, args...); err != nil {
		return fmt.Errorf("writing the notes of the host: %w", err)
	}
	h.logf("published the topology in the notes of host %s", h.Name)
	return nil
}

// runPvesh runs Proxmox's command for the API, which acts as root.
func runPvesh(ctx context.Context, args ...string) ([]byte, error) {
	out, err := exec.CommandContext(ctx, "/usr/bin/pvesh", args...).Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("pvesh %s: %w: %s", args[0], err, strings.TrimSpace(string(exit.Stderr)))
	}
	return out, err
}

const (
	cpuDir  = "/sys/devices/system/cpu"
	nodeDir = "/sys/devices/system/node"
)

// readTopology reads the layout of the online CPUs. Cells without CPUs are omitted, because VMs cannot be bound to them.
func (h Host) readTopology() (hosttopology.Topology, error) {
	var topology hosttopology.Topology
	online, err := h.readCPUs(cpuDir + "/online")
	if err != nil {
		return topology, err
	}
	cells, err := h.readCPUs(nodeDir + "/online")
	if err != nil {
		return topology, err
	}
	for _, id := range cells.List() {
		dir := fmt.Sprintf("%s/node%d", nodeDir, id)
		cpus, err := h.readCPUs(dir + "/cpulist")
		if err != nil {
			return topology, err
		}
		cpus = cpus.Intersection(online)
		if cpus.IsEmpty() {
			continue
		}
		cell := hosttopology.Cell{ID: id}
		if cell.MemoryMiB, err = h.readMemory(dir + "/meminfo"); err != nil {
			return topology, err
		}
		if cell.Cores, err = h.group(cpus, h.readSiblings); err != nil {
			return topology, err
		}
		if cell.Caches, err = h.group(cpus, h.readCache); err != nil {
			return topology, err
		}
		topology.Cells = append(topology.Cells, cell)
	}
	return topology, nil
}

// group divides CPUs by the sets that read returns for each of them. It returns nil if a set is empty: not known.
func (h Host) group(cpus cpuset.CPUSet, read func(cpu int) (cpuset.CPUSet, error)) ([]cpuset.CPUSet, error) {
	var groups []cpuset.CPUSet
	grouped := cpuset.New()
	for _, cpu := range cpus.List() {
		if grouped.Contains(cpu) {
			continue
		}
		set, err := read(cpu)
		if err != nil || set.IsEmpty() {
			return nil, err
		}
		set = set.Intersection(cpus).Difference(grouped).Union(cpuset.New(cpu))
		grouped = grouped.Union(set)
		groups = append(groups, set)
	}
	return groups, nil
}

// readSiblings returns the CPUs of a CPU's core.
func (h Host) readSiblings(cpu int) (cpuset.CPUSet, error) {
	return h.readCPUs(fmt.Sprintf("%s/cpu%d/topology/thread_siblings_list", cpuDir, cpu))
}

// readCache returns the CPUs that share a CPU's last-level cache. Virtual CPUs may have none.
func (h Host) readCache(cpu int) (cpuset.CPUSet, error) {
	levels, err := filepath.Glob(h.path(fmt.Sprintf("%s/cpu%d/cache/index*/level", cpuDir, cpu)))
	if err != nil {
		return cpuset.New(), err
	}
	last, shared := 0, cpuset.New()
	for _, file := range levels {
		content, err := os.ReadFile(file)
		if err != nil {
			return cpuset.New(), err
		}
		level, err := strconv.Atoi(strings.TrimSpace(string(content)))
		if err != nil || level <= last {
			continue
		}
		list, err := filepath.Rel(h.Root, filepath.Join(filepath.Dir(file), "shared_cpu_list"))
		if err != nil {
			return cpuset.New(), err
		}
		if shared, err = h.readCPUs(list); err != nil {
			return cpuset.New(), err
		}
		last = level
	}
	return shared, nil
}

// readMemory returns MemTotal of a cell: "Node 0 MemTotal: 131072 kB".
func (h Host) readMemory(file string) (int64, error) {
	content, err := os.ReadFile(h.path(file))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(content)) {
		if fields := strings.Fields(line); len(fields) == 5 && fields[2] == "MemTotal:" {
			kib, err := strconv.ParseInt(fields[3], 10, 64)
			return kib >> 10, err
		}
	}
	return 0, fmt.Errorf("%s has no MemTotal", file)
}

// readCPUs reads a file with a list of CPUs or cells.
func (h Host) readCPUs(file string) (cpuset.CPUSet, error) {
	content, err := os.ReadFile(h.path(file))
	if err != nil {
		return cpuset.New(), err
	}
	set, err := proxmox.ParseCPUs(strings.TrimSpace(string(content)))
	if err != nil {
		return cpuset.New(), fmt.Errorf("%s: %w", file, err)
	}
	return set, nil
}

// hostName returns the name of the host in Proxmox: its host name without the domain.
func hostName() string {
	name, _ := os.Hostname() // empty if the kernel does not return it; then pvesh fails
	name, _, _ = strings.Cut(name, ".")
	return name
}
