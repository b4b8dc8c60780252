// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// Options configure the guests of a Runtime. The zero value is suitable for most tests.
type Options struct {
	// BootTime is the time between power on and the start of cloud-init.
	BootTime time.Duration
	// NetworkTime is the time between the registration of a Node and Ready, in which a network
	// plugin is installed.
	NetworkTime time.Duration
	// InstallTime is the time that boot data takes which powers the guest off when it is done,
	// such as that of a builder VM; 15s if zero.
	InstallTime time.Duration
	// HeartbeatInterval is how often a kubelet renews its Lease and checks its Node;
	// 10s if zero.
	HeartbeatInterval time.Duration
	// RestartDelay is the delay before systemd restarts a failed kubelet; 10s if
	// zero.
	RestartDelay time.Duration
	// CACerts is the certificate authority of the cluster, which k3s and RKE2 servers
	// return at /cacerts to joining agents.
	CACerts []byte
	// PodGraceLimit is the maximum time that a pod takes to terminate. If it is zero,
	// grace periods and pre-stop hooks take their time.
	PodGraceLimit time.Duration
}

// Runtime runs the guests of one simulator.
type Runtime struct {
	options Options

	mu       sync.Mutex
	consoles map[int]*console
	leases   map[string]netip.Addr // of the simulated DHCP server, by MAC
	lastIP   netip.Addr
	lastPod  netip.Addr
}

var _ pvesim.GuestRuntime = (*Runtime)(nil)

// The networks of guests and pods. No packets are sent to them.
var (
	guestNetwork = netip.MustParsePrefix("172.16.0.0/12")
	podNetwork   = netip.MustParsePrefix("10.128.0.0/9")
)

// NewRuntime returns a Runtime for pvesim's Options.Guests.
func NewRuntime(options Options) *Runtime {
	options.InstallTime = orElse(options.InstallTime, 15*time.Second)
	options.HeartbeatInterval = orElse(options.HeartbeatInterval, 10*time.Second)
	options.RestartDelay = orElse(options.RestartDelay, 10*time.Second)
	return &Runtime{
		options:  options,
		consoles: map[int]*console{},
		leases:   map[string]netip.Addr{},
		lastIP:   guestNetwork.Addr(),
		lastPod:  podNetwork.Addr(),
	}
}

func orElse(d, fallback time.Duration) time.Duration {
	if d > 0 {
		return d
	}
	return fallback
}

// Boot runs one guest from power on until ctx is done, which simulates a power cut, or
// until it has shut down on request.
func (r *Runtime) Boot(ctx context.Context, m *pvesim.Machine) {
	hw := hardware{
		leases: map[string]netip.Prefix{},
		arch:   kubernetesArch(m.Arch),
		vmid:   m.VMID, uuid: m.UUID, serial: m.SMBIOS["serial"], bootID: m.BootID,
		cores: m.Cores, memory: m.MemoryBytes, disk: m.DiskBytes, disks: diskSizes(m.Options()),
		storage: m.Disk, firmware: m.Firmware, shutdown: m.ShutdownRequested(), setAgent: m.SetAgent, health: m.Health,
	}
	defer m.SetAgent(nil)
	for _, n := range m.NICs {
		hw.macs = append(hw.macs, n.MAC)
		if n.Lease.IsValid() {
			hw.leases[n.MAC] = n.Lease
		}
	}
	hw.drives = func() [][]byte {
		var images [][]byte
		for _, cd := range m.CDROMs() {
			images = append(images, cd.Image)
		}
		return images
	}
	r.boot(ctx, hw)
}

// Console returns the console output of the VM with the given ID over all boots.
func (r *Runtime) Console(vmid int) string { return r.console(vmid).String() }

func (r *Runtime) console(vmid int) *console {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, ok := r.consoles[vmid]
	if !ok {
		c = &console{}
		r.consoles[vmid] = c
	}
	return c
}

// dhcp returns the address of a network card, assigned by the cluster's own DHCP server
// if the network has one.
func (g *guest) dhcp(mac string) netip.Prefix {
	if lease, ok := g.leases[mac]; ok {
		return lease
	}
	return g.runtime.dhcp(mac)
}

// dhcp returns the address leased to a network card. It never changes.
func (r *Runtime) dhcp(mac string) netip.Prefix {
	r.mu.Lock()
	defer r.mu.Unlock()
	addr, ok := r.leases[mac]
	if !ok {
		r.lastIP = following(r.lastIP, guestNetwork)
		addr = r.lastIP
		r.leases[mac] = addr
	}
	return netip.PrefixFrom(addr, guestNetwork.Bits())
}

// podIP assigns addresses in order, like a network plugin.
func (r *Runtime) podIP() netip.Addr {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lastPod = following(r.lastPod, podNetwork)
	return r.lastPod
}

// following returns the next address and wraps around at the end of the network.
func following(addr netip.Addr, network netip.Prefix) netip.Addr {
	if next := addr.Next(); network.Contains(next) {
		return next
	}
	return network.Addr().Next()
}

// kubernetesArch returns the architecture as a kubelet reports it.
func kubernetesArch(arch string) string {
	if arch == "aarch64" {
		return "arm64"
	}
	return "amd64"
}

// hardware is the virtual hardware of a guest.
type hardware struct {
	vmid         int
	arch         string // as a kubelet reports it
	uuid, bootID string
	// serial number in the firmware's tables.
	serial       string
	cores        int
	memory, disk int64
	// disks are the sizes of the other disks by their paths.
	disks map[string]int64
	macs  []string
	// leases of the cluster's own DHCP servers, by MAC.
	leases  map[string]netip.Prefix
	storage pvesim.GuestDisk
	// firmware are the files of the firmware interface.
	firmware map[string][]byte
	// drives returns the images in the CD-ROM drives, in the order of the slots.
	drives func() [][]byte
	// setAgent starts the guest agent; it is reachable only if the VM has the agent
	// enabled.
	setAgent func(*pvesim.Agent)
	shutdown <-chan struct{}
	// health of the guest, and a channel that is closed when it changes.
	health func() (pvesim.Health, <-chan struct{})
}

// guest is one boot of one VM.
type guest struct {
	hardware
	runtime *Runtime
	console *console
	// addresses of the network cards when they are configured.
	addresses []address
	// cloudInitEnded is whether cloud-init has configured the guest in this boot.
	cloudInitEnded bool
}

// boot configures the guest, then runs the kubelet until a shutdown is requested.
func (r *Runtime) boot(ctx context.Context, hw hardware) {
	g := &guest{hardware: hw, runtime: r, console: r.console(hw.vmid)}
	g.console.printf("boot %s", g.bootID)
	defer g.console.printf("power off")
	if !pause(ctx, g.shutdown, r.options.BootTime) {
		return
	}
	system, ok := g.configure()
	switch {
	case ok && system.powerOff:
		if pause(ctx, g.shutdown, r.options.InstallTime) {
			g.console.printf("powered off by its boot data")
		}
		return
	case ok && system.service != "":
		g.superviseKubelet(ctx, system)
		return
	}
	for {
		health, changed := g.health()
		if health == pvesim.HealthHung {
			<-ctx.Done()
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-g.shutdown:
			g.console.printf("shutting down")
			return
		case <-changed:
		}
	}
}

// pause waits and reports whether the guest should continue.
func pause(ctx context.Context, shutdown <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-shutdown:
		return false
	case <-timer.C:
		return true
	}
}
