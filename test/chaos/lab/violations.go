// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// MaxRounds is the number of rounds of periodic work after the last fault within which all
// invariants must hold. A round takes ten simulated seconds: MaxRounds corresponds to the 15
// minutes in which Karpenter expects a NodeClaim to register, doubled because some timeouts
// are longer here than in production. Rounds measure work, not time, so a busy machine needs
// no more of them.
const MaxRounds = 2 * int(15*time.Minute/pollInterval)

// ConvergeUnlessKilled waits until all invariants hold or the Process is killed.
func (e *Env) ConvergeUnlessKilled(p *Process) { _ = e.converge(p) }

// converge waits until all invariants hold, or returns the violations that remain after MaxRounds.
func (e *Env) converge(p *Process) []string {
	for first := p.Rounds(); ; {
		violations := e.Violations(p)
		if len(violations) == 0 || p.Rounds()-first > MaxRounds || p.ctx.Err() != nil {
			return violations
		}
		e.deleteLockedVMs()
		e.deleteReportedDisks()
		time.Sleep(20 * time.Millisecond)
	}
}

// MustConverge waits until all invariants hold. It fails the test if they do not within MaxRounds.
func (e *Env) MustConverge(p *Process, when string) {
	e.t.Helper()
	if violations := e.converge(p); len(violations) > 0 {
		e.t.Fatalf("%s: violations on %s:\n%s", when, e.Installation, strings.Join(violations, "\n"))
	}
}

// Violations returns everything that does not match the NodeClaims: VMs too many or too few,
// volumes, boot drives, tokens, reservations or addresses without a NodeClaim, changed guests
// of other users, and a ledger that differs from the configured VMs.
func (e *Env) Violations(p *Process) []string {
	if e.builders != nil {
		return e.templateViolations(p)
	}
	ctx := context.Background()
	var violations []string
	add := func(format string, args ...any) { violations = append(violations, fmt.Sprintf(format, args...)) }
	want, uids := map[int]*karpv1.NodeClaim{}, map[string]*karpv1.NodeClaim{}
	for _, claim := range e.Claims() {
		if !claim.DeletionTimestamp.IsZero() {
			add("claim %s (%s) is still being deleted%s", claim.Name, claim.Status.ProviderID, p.LastErrors(claim.UID))
			continue
		}
		in, ok := instance.ReadIntent(&claim)
		if !ok || !p.Instances.VMs.IsLaunched(&claim) {
			add("claim %s is not launched%s", claim.Name, p.LastErrors(claim.UID))
			continue
		}
		want[in.VMID], uids[string(claim.UID)] = &claim, &claim
	}
	if len(violations) > 0 {
		for _, row := range e.guests() {
			if row.VMID >= testenv.FirstVMID && row.Lock != "" {
				add("VM %d on host %s is locked (%s)", row.VMID, row.Host, row.Lock)
			}
		}
		return violations // further violations would only be consequences
	}
	violations = append(violations, e.guestViolations(want)...)
	violations = append(violations, e.volumeViolations(ctx, want)...)
	violations = append(violations, e.retainedViolations(ctx, len(want))...)
	violations = append(violations, e.tokenViolations(ctx)...)
	violations = append(violations, e.firewallViolations(want)...)
	violations = append(violations, e.addressViolations(p, want)...)
	violations = append(violations, e.haViolations(want)...)
	for uid, r := range p.Inventory.View().Reservations {
		if uids[uid] == nil {
			add("reservation of VM %d for claim %s leaked", r.VMID, uid)
		}
	}
	if len(violations) == 0 {
		return e.ledgerViolations(p)
	}
	return violations
}

// tokenViolations returns leaked join tokens.
func (e *Env) tokenViolations(ctx context.Context) (violations []string) {
	secrets := &corev1.SecretList{}
	if err := e.Kube.List(ctx, secrets, client.HasLabels{bootdata.TokenLabel}); err != nil {
		return []string{fmt.Sprintf("listing tokens: %v", err)}
	}
	for _, secret := range secrets.Items {
		violations = append(violations, fmt.Sprintf("token %s leaked", secret.Name))
	}
	return violations
}

// foreignViolations compares the guests of other users with their recorded state, and returns
// the other guests.
func (e *Env) foreignViolations() (others []proxmox.GuestRow, violations []string) {
	foreign := e.foreign()
	for _, row := range e.guests() {
		before, ok := foreign[row.VMID]
		if !ok {
			others = append(others, row)
			continue
		}
		delete(foreign, row.VMID)
		if after, err := testenv.GuestState(context.Background(), e.admin, row); err != nil || after != before {
			violations = append(violations, fmt.Sprintf("another user's guest %d was changed:\nbefore %s\nafter %s (%v)", row.VMID, before, after, err))
		}
	}
	for vmid := range foreign {
		violations = append(violations, fmt.Sprintf("another user's guest %d is gone", vmid))
	}
	return others, violations
}

// guestViolations compares the existing guests with the expected ones.
func (e *Env) guestViolations(want map[int]*karpv1.NodeClaim) []string {
	others, violations := e.foreignViolations()
	found := map[int]bool{}
	for _, row := range others {
		claim := want[row.VMID]
		if claim == nil {
			violations = append(violations, fmt.Sprintf("VM %d (%s, %s, lock %q) on host %s leaked", row.VMID, row.Name, row.Status, row.Lock, row.Host))
			continue
		}
		found[row.VMID] = true
		cfg, err := e.admin.VMConfig(context.Background(), row.Host, row.VMID)
		switch {
		case err != nil:
			violations = append(violations, fmt.Sprintf("reading VM %d: %v", row.VMID, err))
		case !strings.EqualFold(cfg.SMBIOS().UUID, string(claim.UID)):
			violations = append(violations, fmt.Sprintf("VM %d does not belong to claim %s", row.VMID, claim.Name))
		case !e.hasDisks(cfg):
			violations = append(violations, fmt.Sprintf("disks of VM %d of claim %s were not resized or not created: %v", row.VMID, claim.Name, cfg.Drives().All()))
		case e.addresses != nil && !slices.Equal(cfg.Network().Addresses(), addressesOf(claim)):
			violations = append(violations, fmt.Sprintf("VM %d of claim %s has addresses %v, want %v", row.VMID, claim.Name, cfg.Network().Addresses(), addressesOf(claim)))
		case hasBootDrive(cfg):
			violations = append(violations, fmt.Sprintf("VM %d of claim %s still has its boot drive", row.VMID, claim.Name))
		case row.Status != "running":
			violations = append(violations, fmt.Sprintf("VM %d of claim %s is %s", row.VMID, claim.Name, row.Status))
		}
	}
	for vmid, claim := range want {
		if !found[vmid] {
			violations = append(violations, fmt.Sprintf("VM %d of claim %s is missing", vmid, claim.Name))
		}
	}
	return violations
}

func hasBootDrive(cfg proxmox.VMConfig) bool {
	mark, _ := ownership.Read(cfg.Description())
	return mark.Boot != nil
}

// firewallViolations returns firewall rules of deleted VMs and VMs whose rules are not exactly
// the expected ones. Proxmox does not check whether the VM of a firewall write exists: a write
// that it carries out late creates rules that no call can delete. A launch with the same VMID
// sets its own.
func (e *Env) firewallViolations(want map[int]*karpv1.NodeClaim) (violations []string) {
	groups := e.Sim.FirewallGroups()
	e.mu.Lock()
	late := e.lateFirewall
	e.mu.Unlock()
	for vmid := range groups {
		if _, foreign := e.foreign()[vmid]; !foreign && want[vmid] == nil && vmid >= testenv.FirstVMID && !late && !e.isLost(vmid) {
			violations = append(violations, fmt.Sprintf("firewall rules of VM %d leaked", vmid))
		}
	}
	for vmid, claim := range want {
		found := groups[vmid]
		if late {
			found = slices.Compact(found) // a late write and its repetition have the same effect
		}
		if !slices.Equal(found, []string{testenv.SecurityGroup}) {
			violations = append(violations, fmt.Sprintf("VM %d of claim %s has security groups %v", vmid, claim.Name, groups[vmid]))
		}
	}
	return violations
}

// hasDisks reports whether the boot disk has the size that the class requests, and whether the
// data disk of the class exists once.
func (e *Env) hasDisks(cfg proxmox.VMConfig) bool {
	boot, ok := cfg.Drives().Boot()
	more, wantMore := 0, 0
	if e.dataDisk {
		wantMore = 1
	}
	for _, drive := range cfg.Drives().All() {
		if drive.Properties.Value("serial") == diskName {
			more++
		}
	}
	if e.machine && !slices.ContainsFunc(cfg.Drives().All(), func(d proxmox.Drive) bool { return d.Properties.Value("serial") == "retained" }) {
		return false
	}
	return ok && boot.SizeBytes >= diskBytes && more == wantMore
}

// volumeViolations returns leaked disks and boot drives.
func (e *Env) volumeViolations(ctx context.Context, want map[int]*karpv1.NodeClaim) (violations []string) {
	foreignGuests, c := e.foreign(), e.admin
	for _, host := range e.Hosts {
		for storage, content := range map[string]string{"local-lvm": "images", "local": "iso"} {
			volumes, err := c.Volumes(ctx, host, storage, content)
			if err != nil {
				violations = append(violations, fmt.Sprintf("listing storage %s of host %s: %v", storage, host, err))
			}
			for _, volume := range volumes {
				_, foreign := foreignGuests[volume.VMID]
				if strings.Contains(volume.ID, "karpenter-") || (volume.VMID >= testenv.FirstVMID && volume.VMID != proxmox.RetainedVMID && want[volume.VMID] == nil && !foreign) {
					violations = append(violations, fmt.Sprintf("volume %s on host %s leaked", volume.ID, host))
				}
			}
		}
	}
	return violations
}

// deleteLockedVMs does what the controller asks an admin to do: a create, clone or destroy that was
// interrupted by a host failure leaves a locked configuration, which only root may unlock.
func (e *Env) deleteLockedVMs() {
	ctx := context.Background()
	for _, row := range e.guests() {
		if _, foreign := e.foreign()[row.VMID]; foreign || (row.VMID < testenv.FirstVMID && e.builders == nil) || !e.hasStaleLock(row) || e.Sim.SetConfigLock(row.VMID, "") != nil {
			continue
		}
		e.t.Logf("destroying VM %d on host %s as root: stale lock %q", row.VMID, row.Host, row.Lock)
		task, err := e.admin.DestroyVM(ctx, row.Host, row.VMID)
		if err == nil {
			_, err = proxmox.WaitTask(ctx, e.admin, task, proxmox.WaitOptions{Clock: e.Clock})
		}
		volumes, listErr := e.admin.Volumes(ctx, row.Host, "local-lvm", "images")
		if err != nil || listErr != nil {
			// The controller may have destroyed it. Violations reports what remains.
			e.t.Logf("destroying VM %d as root: %v %v", row.VMID, err, listErr)
		}
		for _, volume := range volumes {
			if volume.VMID == row.VMID {
				_, _ = e.admin.DeleteVolume(ctx, row.Host, volume.ID) // Violations reports a volume that remains
			}
		}
	}
}

// hasStaleLock reports whether a guest is locked by a create, clone or destroy that is no longer
// running.
func (e *Env) hasStaleLock(row proxmox.GuestRow) bool {
	kind, ok := map[string]string{"clone": "qmclone", "destroyed": "qmdestroy", "create": "qmcreate"}[row.Lock]
	if !ok {
		return false
	}
	tasks, err := e.admin.RunningTasks(context.Background(), row.Host, kind)
	if err != nil || len(tasks) > 0 {
		return false
	}
	cfg, err := e.admin.VMConfig(context.Background(), row.Host, row.VMID)
	return err == nil && cfg.Lock() == row.Lock
}

// CreateForeignVM clones a VM of another user with the given VMID from the template of a host, unless the VMID exists.
func (e *Env) CreateForeignVM(host string, vmid int) {
	ctx, c, guests := context.Background(), e.admin, e.guests()
	template := slices.IndexFunc(guests, func(row proxmox.GuestRow) bool { return row.Host == host && row.Template })
	if template < 0 {
		return
	}
	task, err := c.CloneVM(ctx, proxmox.CloneRequest{Host: host, TemplateID: guests[template].VMID, VMID: vmid, Name: "foreign"})
	if err != nil {
		return
	}
	if status, err := proxmox.WaitTask(ctx, c, task, proxmox.WaitOptions{Clock: e.Clock}); err == nil && status.Err() == nil {
		testenv.Must(e.t, e.recordForeign(proxmox.GuestRow{Host: host, VMID: vmid}))
	}
}

func (e *Env) foreign() map[int]string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.foreignGuests)
}

// recordForeign records the current state of another user's guest.
func (e *Env) recordForeign(row proxmox.GuestRow) error {
	state, err := testenv.GuestState(context.Background(), e.admin, row)
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.foreignGuests[row.VMID] = state
	return nil
}

// guests returns all guests except those on hosts that were removed.
func (e *Env) guests() []proxmox.GuestRow {
	resources, err := e.admin.Resources(context.Background())
	if err != nil {
		e.t.Logf("listing guests: %v", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.DeleteFunc(resources.Guests, func(row proxmox.GuestRow) bool { return slices.Contains(e.removed, row.Host) })
}

// CancelTasks cancels every running task, as an admin does with tasks that hang.
func (e *Env) CancelTasks() {
	ctx := context.Background()
	for _, host := range e.Hosts {
		tasks, err := e.admin.RunningTasks(ctx, host, "")
		if err != nil {
			continue // the host is offline and its tasks have ended
		}
		for _, task := range tasks {
			_ = e.admin.CancelTask(ctx, task.UPID) // it may already have ended
		}
	}
}
