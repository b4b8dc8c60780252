// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
)

// monitorTimeout limits how long QEMU may take for a command. A busy machine is slow.
const monitorTimeout = time.Minute

// guest is one QEMU process.
type guest struct {
	runtime *Runtime
	machine *pvesim.Machine
	dir     string

	process *process
	monitor *monitor
	agent   *agent     // does not respond if the VM has no agent channel
	servers []*process // of virtiofs shares

	// The state of the process, changed only by run.
	paused bool
	media  map[string]string // volume in each CD-ROM drive; empty for none
	sizes  map[string]int64  // of the disks
}

// hasContent reports whether the VM has something to boot.
func (g *guest) hasContent(disks []pvesim.Disk) bool {
	for _, d := range disks {
		if d.Base != "" {
			return true
		}
		if _, err := os.Stat(d.Path); d.Path != "" && err == nil {
			return true
		}
	}
	return g.runtime.options.Kernel != "" || len(g.machine.CDROMs()) > 0
}

// start prepares the files of the VM and starts QEMU.
func (g *guest) start(ctx context.Context, disks []pvesim.Disk) error {
	if err := os.RemoveAll(g.dir); err != nil {
		return fmt.Errorf("removing files of the last boot: %w", err)
	}
	if err := os.Mkdir(g.dir, 0o700); err != nil {
		return fmt.Errorf("creating directory: %w", err)
	}
	h, err := g.hardware(ctx, disks)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), g.runtime.qemu, h.arguments()...) // run ends it
	cmd.Dir = g.dir
	var connections [2]net.Conn
	for i := range connections { // monitorFD, agentFD
		conn, remote, err := socketPair()
		if err != nil {
			return err
		}
		connections[i] = conn
		cmd.ExtraFiles = append(cmd.ExtraFiles, remote)
	}
	log, err := os.Create(g.logFile())
	if err != nil {
		return fmt.Errorf("creating log: %w", err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	g.process, err = startProcess(cmd)
	for _, file := range append(cmd.ExtraFiles, log) {
		_ = file.Close() // the child has its own
	}
	g.agent = newAgent(connections[1])
	g.monitor = newMonitor(connections[0], g.handleEvent)
	if err != nil {
		g.closeConnections()
		return err
	}
	acceleration := "TCG"
	if h.kvm {
		acceleration = "KVM"
	}
	g.runtime.logf("VM %d (%s): started with %s; console: socat -,rawer,escape=0x1d unix-connect:%s", g.machine.VMID, g.machine.Name, acceleration, h.socket)
	return nil
}

// cleanUp ends the servers and removes the files of this boot.
func (g *guest) cleanUp() {
	for _, server := range g.servers {
		server.kill()
	}
	_ = os.RemoveAll(g.dir) // the directory of all guests is removed at the end
}

func (g *guest) logFile() string { return filepath.Join(g.dir, "qemu.log") }

func (g *guest) closeConnections() {
	g.agent.close()
	g.monitor.close()
}

// handleEvent processes an event of QEMU.
func (g *guest) handleEvent(name string, data json.RawMessage) {
	var port struct {
		ID   string
		Open bool
	}
	if name == "VSERPORT_CHANGE" && json.Unmarshal(data, &port) == nil && port.ID == agentPort {
		g.agent.setOpen(port.Open)
	}
}

// run applies changes of the VM to the process until it ends. It returns an error if QEMU failed.
func (g *guest) run(ctx context.Context) error {
	defer g.closeConnections()
	defer g.process.kill()
	if err := g.execute(ctx, "qmp_capabilities", nil); err != nil {
		g.process.kill()
		return fmt.Errorf("QEMU does not run: %w\n%s", err, g.output())
	}
	polling, stop := context.WithCancel(ctx)
	defer stop()
	go g.agent.poll(polling, g.machine)
	shutdown := g.machine.ShutdownRequested()
	for {
		updated := g.machine.Updated()
		health, healthChanged := g.machine.Health()
		g.apply(ctx, health == pvesim.HealthHung)
		select {
		case <-ctx.Done():
			g.quit()
			return nil
		case <-g.process.done:
			if g.process.err != nil {
				return fmt.Errorf("QEMU ended: %w\n%s", g.process.err, g.output())
			}
			g.runtime.logf("VM %d (%s): powered off", g.machine.VMID, g.machine.Name)
			return nil
		case <-shutdown:
			shutdown = nil
			g.requestShutdown(ctx)
		case <-updated:
		case <-healthChanged:
		}
	}
}

// quitTimeout limits how long QEMU may take to end. It is killed then.
const quitTimeout = 10 * time.Second

// quit ends QEMU, which writes the data that the guest wrote to its disks without a flush.
func (g *guest) quit() {
	ctx, cancel := context.WithTimeout(context.Background(), quitTimeout)
	defer cancel()
	if g.monitor.execute(ctx, "quit", nil, nil) != nil {
		return
	}
	select {
	case <-g.process.done:
	case <-ctx.Done():
	}
}

// output returns the messages of QEMU.
func (g *guest) output() string {
	data, err := os.ReadFile(g.logFile())
	if err != nil {
		return err.Error()
	}
	return string(bytes.TrimSpace(data))
}

func (g *guest) execute(ctx context.Context, command string, arguments map[string]any) error {
	ctx, cancel := context.WithTimeout(ctx, monitorTimeout)
	defer cancel()
	return g.monitor.execute(ctx, command, arguments, nil)
}

// try runs a command of the monitor and logs its failure.
func (g *guest) try(ctx context.Context, command string, arguments map[string]any) {
	if err := g.execute(ctx, command, arguments); err != nil && ctx.Err() == nil {
		g.runtime.logf("VM %d (%s): %v", g.machine.VMID, g.machine.Name, err)
	}
}

// requestShutdown shuts the guest down by its agent, or by ACPI if the agent does not respond, like Proxmox.
func (g *guest) requestShutdown(ctx context.Context) {
	if g.agent.shutdown() {
		return
	}
	g.try(ctx, "system_powerdown", nil)
}

// apply changes the process to the current state of the VM: pause, media and sizes of disks.
func (g *guest) apply(ctx context.Context, hung bool) {
	if paused := g.machine.Paused() || hung; paused != g.paused {
		g.try(ctx, map[bool]string{true: "stop", false: "cont"}[paused], nil)
		g.paused = paused
	}
	options := g.machine.Options()
	for slot, before := range g.media {
		d, ok := qm.ParseDrive(slot, options[slot])
		if volume := mediumOf(d); ok && d.IsCDROM() && volume != before {
			g.changeMedium(ctx, slot, volume)
			g.media[slot] = volume
		}
	}
	for _, disk := range g.machine.Disks() {
		if size, ok := g.sizes[disk.Slot]; ok && disk.Bytes > size {
			g.try(ctx, "block_resize", map[string]any{"device": "drive-" + disk.Slot, "size": disk.Bytes})
			g.sizes[disk.Slot] = disk.Bytes
		}
	}
}

// mediumOf returns the volume in a CD-ROM drive, or "".
func mediumOf(d qm.Drive) string {
	if !d.HasVolume() {
		return ""
	}
	return d.File
}

// changeMedium inserts a volume into a CD-ROM drive, or removes the medium, even if the guest has locked the drive.
func (g *guest) changeMedium(ctx context.Context, slot, volume string) {
	if volume == "" {
		g.try(ctx, "eject", map[string]any{"id": slot, "force": true})
		return
	}
	files, err := g.writeMedia()
	if err != nil {
		g.runtime.logf("VM %d (%s): %v", g.machine.VMID, g.machine.Name, err)
		return
	}
	g.try(ctx, "blockdev-change-medium", map[string]any{
		"id": slot, "filename": files[slot], "format": "raw", "read-only-mode": "read-only", "force": true,
	})
}

// writeMedia writes the media of the CD-ROM drives to files and returns them by slot.
func (g *guest) writeMedia() (map[string]string, error) {
	files := map[string]string{}
	for _, cd := range g.machine.CDROMs() {
		if cd.Image == nil {
			continue
		}
		file := filepath.Join(g.dir, cd.Slot+"-"+strings.Map(safeRune, cd.Volid))
		if err := os.WriteFile(file, cd.Image, 0o600); err != nil {
			return nil, fmt.Errorf("writing medium of %s: %w", cd.Slot, err)
		}
		files[cd.Slot] = file
	}
	return files, nil
}

func safeRune(r rune) rune {
	if strings.ContainsRune("/:,", r) {
		return '_'
	}
	return r
}
