// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package power_test

import (
	"cmp"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/power"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

const kubeCluster = "6fd5ad62-0000-4000-8000-000000000001"

// idleScenario returns three Hosts with nothing but a template. Only pve2 is enrolled.
func idleScenario() *pvesim.Scenario {
	s := pvesim.DefaultScenario(3)
	s.Guests = slices.DeleteFunc(s.Guests, func(g pvesim.Guest) bool { return g.VMID < 9000 })
	s.Hosts[1].Config = map[string]string{"wakeonlan": "BC:24:11:AA:00:02"}
	return s
}

// decide returns the decision about pve2 in a simulated Cluster, with changed Facts.
func decide(t *testing.T, s *pvesim.Scenario, change func(*power.Facts), reservations ...inventory.Reservation) (decision power.Decision) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		sim, err := pvesim.New(s, pvesim.Options{InMemory: true})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(sim.Start(t.Context())).To(Succeed())
		t.Cleanup(sim.Close)
		client, err := proxmox.New(proxmox.ClusterConfig{
			Region: "home", URLs: []string{sim.URL()}, CA: string(sim.CAPEM()), TokenID: pvesim.DefaultTokenID, TokenSecret: pvesim.DefaultTokenSecret,
		}, proxmox.Options{DialContext: sim.DialContext})
		g.Expect(err).NotTo(HaveOccurred())
		settings, err := declared.ParseSettings([]byte(`{"home": {"pve2": {"powermanagement": "Report", "wattsidle": 60}}}`))
		g.Expect(err).NotTo(HaveOccurred())
		inv, err := inventory.New([]proxmox.Client{client}, inventory.Options{Settings: settings, DetailRange: observed.VMIDRange{From: 20000, To: 30000}})
		g.Expect(err).NotTo(HaveOccurred())
		time.Sleep(10 * time.Second) // hosts are unknown until they have reported
		g.Expect(inv.RefreshAll(t.Context())).To(Succeed())
		view := inv.View().WithReservations(reservations...)
		for _, r := range reservations {
			view.Reservations[r.ClaimUID] = r // it may be fulfilled
		}
		facts := power.ReadFacts(t.Context(), client, view.Snapshots["home"].Version, power.EnrolledHosts(view, "home"))
		if change != nil {
			change(&facts)
		}
		decisions := power.Decide(power.NewRegion(power.Source{
			View: view, Region: "home", Facts: facts, KubeCluster: kubeCluster, Now: time.Now(),
			IdleSince: func(string) time.Time { return time.Now().Add(-time.Hour) },
		}))
		g.Expect(decisions).To(ConsistOf(HaveField("Host", "pve2")))
		decision = decisions[0]
	})
	return decision
}

func marked(vmid int, cluster string) pvesim.Guest {
	mark := ownership.Mark{VMID: vmid, KubeCluster: cluster, ClaimUID: "a"}
	return pvesim.Guest{VMID: vmid, Config: map[string]string{"memory": "1024", "description": mark.Notes("")}}
}

// Each host may be the target of a migration.
func TestNewRegionMigration(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	decision := decide(t, idleScenario(), func(f *power.Facts) {
		f.Tasks = append(f.Tasks, proxmox.TaskStatus{UPID: "UPID:pve1:00003921:00053CD7:6AF90394:qmigrate:101:root@pam:", Type: "qmigrate", ID: "101", Running: true})
	})
	g.Expect(decision.Reasons).To(Equal([]power.Reason{{Type: power.TaskRunning, Message: "running tasks: qmigrate 101"}}))
}

// backupOfPool adds a job that backs up a resource pool, with the guest of that index in it.
func backupOfPool(guest int) func(*pvesim.Scenario) {
	return func(s *pvesim.Scenario) {
		s.Pools = append(s.Pools, pvesim.Pool{ID: "prod"})
		if guest >= 0 {
			s.Guests[guest].Pool = "prod"
		}
		s.Roles[0].Privileges = append(s.Roles[0].Privileges, "Pool.Audit")
		backup(pvesim.BackupJob{Pool: "prod"})(s)
	}
}

// guest adds a guest to pve2.
func guest(g pvesim.Guest) func(*pvesim.Scenario) {
	g.VMID, g.Host = cmp.Or(g.VMID, 150), "pve2"
	if g.Config == nil {
		g.Config = map[string]string{"memory": "1024"}
	}
	return func(s *pvesim.Scenario) { s.Guests = append(s.Guests, g) }
}

// backup adds a job that starts in a minute if it has no time.
func backup(job pvesim.BackupJob) func(*pvesim.Scenario) {
	job.ID, job.NextRun = "nightly", cmp.Or(job.NextRun, pvesim.Duration(time.Minute))
	return func(s *pvesim.Scenario) { s.BackupJobs = []pvesim.BackupJob{job} }
}

func replication(job pvesim.ReplicationJob) func(*pvesim.Scenario) {
	return func(s *pvesim.Scenario) { s.ReplicationJobs = []pvesim.ReplicationJob{job} }
}

// export adds a storage of an NFS server.
func export(server string) func(*pvesim.Scenario) {
	nas := pvesim.Storage{ID: "nas", Type: "nfs", Content: []string{"iso"}, Size: pvesim.GiB, Server: server}
	return func(s *pvesim.Scenario) { s.Storages = append(s.Storages, nas) }
}

// without removes a privilege of the token.
func without(s *pvesim.Scenario, privilege string) {
	s.Roles[0].Privileges = slices.DeleteFunc(s.Roles[0].Privileges, func(p string) bool { return p == privilege })
}

func TestNewRegion(t *testing.T) {
	t.Parallel()
	type reasons = []power.ReasonType
	for name, test := range map[string]struct {
		change func(*pvesim.Scenario)
		want   reasons
	}{
		"idle":      {func(*pvesim.Scenario) {}, nil},
		"votes":     {func(s *pvesim.Scenario) { s.Hosts[1].Votes = 2 }, reasons{power.QuorumRequired}},
		"two_hosts": {func(s *pvesim.Scenario) { s.Hosts, s.Guests = s.Hosts[:2], s.Guests[:2] }, reasons{power.QuorumRequired}},
		"QDevice": {func(s *pvesim.Scenario) {
			s.Hosts, s.Guests, s.Votes = s.Hosts[:2], s.Guests[:2], &pvesim.Votes{QDevice: true}
		}, nil},
		"no_address":  {func(s *pvesim.Scenario) { s.Hosts[1].Config = nil }, reasons{power.NoWakeAddress}},
		"maintenance": {func(s *pvesim.Scenario) { s.Hosts[1].Maintenance = true }, reasons{power.InMaintenance}},
		"Ceph_here": {func(s *pvesim.Scenario) { s.Hosts[0].Ceph, s.Hosts[1].Ceph = []string{"mon"}, []string{"osd.1"} },
			reasons{power.CephDaemon}},
		"Ceph_not_on_the_responding_host": {func(s *pvesim.Scenario) { s.Hosts[1].Ceph = []string{"osd.1"} }, reasons{power.CephDaemon}},
		"Ceph_elsewhere":                  {func(s *pvesim.Scenario) { s.Hosts[0].Ceph = []string{"mon"} }, nil},
		"own_VM":                          {guest(marked(20000, kubeCluster)), reasons{power.InUse}},
		"other_cluster":                   {guest(marked(20000, "other")), reasons{power.OtherCluster}},
		"running_guest":                   {guest(pvesim.Guest{Status: "running"}), reasons{power.GuestRunning}},
		"running_container":               {guest(pvesim.Guest{Type: "lxc", Status: "running"}), reasons{power.GuestRunning}},
		"stopped_guest":                   {guest(pvesim.Guest{}), nil},
		"stopped_container":               {guest(pvesim.Guest{Type: "lxc"}), reasons{power.GuestStartsOnBoot}},
		"onboot":                          {guest(pvesim.Guest{Config: map[string]string{"memory": "1024", "onboot": "1"}}), reasons{power.GuestStartsOnBoot}},
		"only_template":                   {func(s *pvesim.Scenario) { s.Guests[1].Name = "talos" }, reasons{power.OnlyTemplate}},

		"backup_of_all":                         {backup(pvesim.BackupJob{}), reasons{power.BackupDue}},
		"backup_later":                          {backup(pvesim.BackupJob{NextRun: pvesim.Duration(5 * time.Hour)}), nil},
		"backup_of_the_host":                    {backup(pvesim.BackupJob{Host: "pve2", VMs: []int{9001}}), reasons{power.BackupDue}},
		"backup_of_the_host_without_its_guests": {backup(pvesim.BackupJob{Host: "pve2", VMs: []int{9000}}), nil},
		"backup_of_all_on_another_host":         {backup(pvesim.BackupJob{Host: "pve1"}), nil},
		"backup_of_all_others":                  {backup(pvesim.BackupJob{Exclude: []int{1, 9001}}), nil},
		"backup_without_another_guest":          {backup(pvesim.BackupJob{Exclude: []int{9000}}), reasons{power.BackupDue}},
		"backup_of_another_guest":               {backup(pvesim.BackupJob{VMs: []int{9000}}), nil},
		"backup_of_a_pool":                      {backupOfPool(1), reasons{power.BackupDue}},
		"backup_of_another_pool":                {backupOfPool(0), nil},
		"backup_of_an_empty_pool":               {backupOfPool(-1), nil},
		"backup_of_an_unread_pool":              {func(s *pvesim.Scenario) { backupOfPool(0)(s); without(s, "Pool.Audit") }, reasons{power.BackupDue}},
		"backup_of_a_pool_with_exclusions":      {func(s *pvesim.Scenario) { backupOfPool(1)(s); s.BackupJobs[0].Exclude = []int{9001} }, reasons{power.BackupDue}},

		"replication_target":    {replication(pvesim.ReplicationJob{VMID: 9000, Target: "pve2"}), reasons{power.Replication}},
		"replication_source":    {replication(pvesim.ReplicationJob{VMID: 9001, Target: "pve3"}), reasons{power.Replication}},
		"replication_elsewhere": {replication(pvesim.ReplicationJob{VMID: 9000, Target: "pve3"}), nil},
		"export_by_address":     {export("10.97.0.3"), reasons{power.StorageExported}},
		"export_by_name":        {export("pve2.example.com"), reasons{power.StorageExported}},
		"offline":               {func(s *pvesim.Scenario) { s.Hosts[1].Offline = true }, reasons{power.NotOnline}},
		"hidden_guests": {func(s *pvesim.Scenario) {
			s.ACLs = append(s.ACLs, pvesim.ACL{Path: "/vms", Role: "NoAccess", User: "kubernetes@pve"})
		}, reasons{power.FactsUnknown}},
		"no_privileges": {func(s *pvesim.Scenario) { without(s, "Sys.Audit") }, reasons{power.FactsUnknown, power.NoWakeAddress, power.QuorumRequired}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := idleScenario()
			test.change(s)
			decision := decide(t, s, nil)
			var got []power.ReasonType
			for _, reason := range decision.Reasons {
				got = append(got, reason.Type)
			}
			NewWithT(t).Expect(got).To(Equal(test.want), decision.Message())
			NewWithT(t).Expect(decision.Action == power.Sleep).To(Equal(test.want == nil), "%s", decision.Action)
		})
	}
}

func TestNewRegionReservation(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	parked := inventory.Reservation{ClaimUID: "a", Region: "home", Host: "pve2", TemplateHost: "pve2", VMID: 20007}
	g.Expect(decide(t, idleScenario(), nil, parked).Message()).To(BeEmpty(), "a VM that waits for capacity")
	for name, reservation := range map[string]inventory.Reservation{"host": {Host: "pve2"}, "host_of_the_template": {Host: "pve1", TemplateHost: "pve2"}} {
		reservation.ClaimUID, reservation.Region, reservation.VMID, reservation.Amount = "a", "home", 20007, observed.Amount{CPUs: 1, MemoryBytes: 1 << 30}
		g.Expect(decide(t, idleScenario(), nil, reservation).Message()).To(Equal("VMs of this Kubernetes cluster: 20007 (being launched)"), name)
		reservation.Fulfilled = true // its VM was deleted
		g.Expect(decide(t, idleScenario(), nil, reservation).Message()).To(BeEmpty(), "%s: deleted VM", name)
	}
}
