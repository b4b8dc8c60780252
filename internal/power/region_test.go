// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package power_test

import (
	"slices"
	"testing"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
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

// decide returns the decision about pve2 in a simulated Cluster.
func decide(t *testing.T, s *pvesim.Scenario, reservations ...inventory.Reservation) power.Decision {
	t.Helper()
	return decideWith(t, s, func(*power.Facts) {}, reservations...)
}

// decideWith returns the decision about pve2 with changed Facts.
func decideWith(t *testing.T, s *pvesim.Scenario, change func(*power.Facts), reservations ...inventory.Reservation) power.Decision {
	t.Helper()
	sim, err := pvesim.New(s, pvesim.Options{Speed: 50})
	if err != nil {
		t.Fatal(err)
	}
	if err := sim.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sim.Close)
	client, err := proxmox.New(proxmox.ClusterConfig{
		Region: "home", URLs: []string{sim.URL()}, CA: string(sim.CAPEM()), TokenID: pvesim.DefaultTokenID, TokenSecret: pvesim.DefaultTokenSecret,
	}, proxmox.Options{DialTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	settings, err := inventory.ParseSettings([]byte(`{"home": {"pve2": {"powermanagement": "Report", "wattsidle": 60}}}`))
	if err != nil {
		t.Fatal(err)
	}
	inv, err := inventory.New([]proxmox.Client{client}, inventory.Options{Settings: settings, DetailRange: inventory.VMIDRange{From: 20000, To: 30000}})
	if err != nil {
		t.Fatal(err)
	}
	// Hosts are unknown until they have reported.
	for online := false; !online; {
		if err := inv.RefreshAll(t.Context()); err != nil {
			t.Fatal(err)
		}
		host, _ := inv.View().Host("home", "pve2")
		online = host.OfflineSince.IsZero() || s.Hosts[1].Offline
	}
	view := inv.View().WithReservations(reservations...)
	for _, r := range reservations {
		view.Reservations[r.ClaimUID] = r // it may be fulfilled
	}
	facts := power.ReadFacts(t.Context(), client, view.Snapshots["home"].Version, power.EnrolledHosts(view, "home"))
	change(&facts)
	decisions := power.Decide(power.NewRegion(power.Source{
		View: view, Region: "home", Facts: facts, KubeCluster: kubeCluster, Now: time.Now(),
		IdleSince: func(string) time.Time { return time.Now().Add(-time.Hour) },
	}))
	if len(decisions) != 1 || decisions[0].Host != "pve2" {
		t.Fatalf("decisions: %+v", decisions)
	}
	return decisions[0]
}

func marked(vmid int, cluster string) pvesim.Guest {
	mark := ownership.Mark{VMID: vmid, KubeCluster: cluster, ClaimUID: "a"}
	return pvesim.Guest{VMID: vmid, Host: "pve2", Config: map[string]string{"memory": "1024", "description": mark.Notes("")}}
}

// Each host may be the target of a migration.
func TestNewRegionMigration(t *testing.T) {
	t.Parallel()
	decision := decideWith(t, idleScenario(), func(f *power.Facts) {
		f.Tasks = append(f.Tasks, proxmox.TaskStatus{UPID: "UPID:pve1:00003921:00053CD7:6AF90394:qmigrate:101:root@pam:", Type: "qmigrate", ID: "101", Running: true})
	})
	if len(decision.Reasons) != 1 || decision.Reasons[0] != (power.Reason{Type: power.TaskRunning, Message: "running tasks: qmigrate 101"}) {
		t.Errorf("got %+v", decision)
	}
}

// backupOfPool adds a job that backs up a resource pool, with the guest of that index in it.
func backupOfPool(guest int) func(*pvesim.Scenario) {
	return func(s *pvesim.Scenario) {
		s.Pools = append(s.Pools, pvesim.Pool{ID: "prod"})
		if guest >= 0 {
			s.Guests[guest].Pool = "prod"
		}
		s.Roles[0].Privileges = append(s.Roles[0].Privileges, "Pool.Audit")
		s.BackupJobs = []pvesim.BackupJob{{ID: "nightly", Pool: "prod", NextRun: pvesim.Duration(time.Minute)}}
	}
}

func TestNewRegion(t *testing.T) {
	t.Parallel()
	guest := func(g pvesim.Guest) func(*pvesim.Scenario) {
		return func(s *pvesim.Scenario) { s.Guests = append(s.Guests, g) }
	}
	for name, test := range map[string]struct {
		change func(*pvesim.Scenario)
		want   []power.ReasonType
	}{
		"idle":      {func(*pvesim.Scenario) {}, nil},
		"votes":     {func(s *pvesim.Scenario) { s.Hosts[1].Votes = 2 }, []power.ReasonType{power.QuorumRequired}},
		"two_hosts": {func(s *pvesim.Scenario) { s.Hosts, s.Guests = s.Hosts[:2], s.Guests[:2] }, []power.ReasonType{power.QuorumRequired}},
		"QDevice": {func(s *pvesim.Scenario) {
			s.Hosts, s.Guests, s.Votes = s.Hosts[:2], s.Guests[:2], &pvesim.Votes{QDevice: true}
		}, nil},
		"no_address":                      {func(s *pvesim.Scenario) { s.Hosts[1].Config = nil }, []power.ReasonType{power.NoWakeAddress}},
		"maintenance":                     {func(s *pvesim.Scenario) { s.Hosts[1].Maintenance = true }, []power.ReasonType{power.InMaintenance}},
		"Ceph_here":                       {func(s *pvesim.Scenario) { s.Hosts[0].Ceph, s.Hosts[1].Ceph = []string{"mon"}, []string{"osd.1"} }, []power.ReasonType{power.CephDaemon}},
		"Ceph_not_on_the_responding_host": {func(s *pvesim.Scenario) { s.Hosts[1].Ceph = []string{"osd.1"} }, []power.ReasonType{power.CephDaemon}},
		"Ceph_elsewhere":                  {func(s *pvesim.Scenario) { s.Hosts[0].Ceph = []string{"mon"} }, nil},
		"own_VM":                          {guest(marked(20000, kubeCluster)), []power.ReasonType{power.InUse}},
		"other_cluster":                   {guest(marked(20000, "other")), []power.ReasonType{power.OtherCluster}},
		"running_guest": {
			guest(pvesim.Guest{VMID: 150, Host: "pve2", Status: "running", Config: map[string]string{"memory": "1024"}}), []power.ReasonType{power.GuestRunning},
		},
		"running_container": {
			guest(pvesim.Guest{VMID: 150, Host: "pve2", Type: "lxc", Status: "running", Config: map[string]string{"memory": "1024"}}),
			[]power.ReasonType{power.GuestRunning},
		},
		"stopped_guest": {guest(pvesim.Guest{VMID: 150, Host: "pve2", Config: map[string]string{"memory": "1024"}}), nil},
		"stopped_container": {
			guest(pvesim.Guest{VMID: 150, Host: "pve2", Type: "lxc", Config: map[string]string{"memory": "1024"}}), []power.ReasonType{power.GuestStartsOnBoot},
		},
		"onboot": {
			guest(pvesim.Guest{VMID: 150, Host: "pve2", Config: map[string]string{"memory": "1024", "onboot": "1"}}), []power.ReasonType{power.GuestStartsOnBoot},
		},
		"only_template": {func(s *pvesim.Scenario) { s.Guests[1].Name = "talos" }, []power.ReasonType{power.OnlyTemplate}},
		"backup_of_the_host": {
			func(s *pvesim.Scenario) {
				s.BackupJobs = []pvesim.BackupJob{{ID: "nightly", Host: "pve2", VMs: []int{9001}, NextRun: pvesim.Duration(time.Minute)}}
			},
			[]power.ReasonType{power.BackupDue},
		},
		"backup_of_the_host_without_its_guests": {
			func(s *pvesim.Scenario) {
				s.BackupJobs = []pvesim.BackupJob{{ID: "nightly", Host: "pve2", VMs: []int{9000}, NextRun: pvesim.Duration(time.Minute)}}
			}, nil,
		},
		"backup_of_all_on_another_host": {
			func(s *pvesim.Scenario) {
				s.BackupJobs = []pvesim.BackupJob{{ID: "nightly", Host: "pve1", NextRun: pvesim.Duration(time.Minute)}}
			}, nil,
		},
		"backup_of_all_others": {
			func(s *pvesim.Scenario) {
				s.BackupJobs = []pvesim.BackupJob{{ID: "nightly", Exclude: []int{1, 9001}, NextRun: pvesim.Duration(time.Minute)}}
			}, nil,
		},
		"backup_without_another_guest": {
			func(s *pvesim.Scenario) {
				s.BackupJobs = []pvesim.BackupJob{{ID: "nightly", Exclude: []int{9000}, NextRun: pvesim.Duration(time.Minute)}}
			},
			[]power.ReasonType{power.BackupDue},
		},
		"backup_of_a_pool":        {backupOfPool(1), []power.ReasonType{power.BackupDue}},
		"backup_of_another_pool":  {backupOfPool(0), nil},
		"backup_of_an_empty_pool": {backupOfPool(-1), nil},
		"backup_of_an_unread_pool": {
			func(s *pvesim.Scenario) {
				backupOfPool(0)(s)
				s.Roles[0].Privileges = slices.DeleteFunc(s.Roles[0].Privileges, func(p string) bool { return p == "Pool.Audit" })
			},
			[]power.ReasonType{power.BackupDue},
		},
		"backup_of_a_pool_with_exclusions": {
			func(s *pvesim.Scenario) { backupOfPool(1)(s); s.BackupJobs[0].Exclude = []int{9001} }, []power.ReasonType{power.BackupDue},
		},
		"backup_of_all": {
			func(s *pvesim.Scenario) {
				s.BackupJobs = []pvesim.BackupJob{{ID: "nightly", NextRun: pvesim.Duration(time.Minute)}}
			},
			[]power.ReasonType{power.BackupDue},
		},
		"backup_later": {
			func(s *pvesim.Scenario) {
				s.BackupJobs = []pvesim.BackupJob{{ID: "nightly", NextRun: pvesim.Duration(5 * time.Hour)}}
			}, nil,
		},
		"backup_of_another_guest": {
			func(s *pvesim.Scenario) {
				s.BackupJobs = []pvesim.BackupJob{{ID: "nightly", VMs: []int{9000}, NextRun: pvesim.Duration(time.Minute)}}
			}, nil,
		},
		"replication_target": {
			func(s *pvesim.Scenario) { s.ReplicationJobs = []pvesim.ReplicationJob{{VMID: 9000, Target: "pve2"}} }, []power.ReasonType{power.Replication},
		},
		"replication_source": {
			func(s *pvesim.Scenario) { s.ReplicationJobs = []pvesim.ReplicationJob{{VMID: 9001, Target: "pve3"}} }, []power.ReasonType{power.Replication},
		},
		"replication_elsewhere": {
			func(s *pvesim.Scenario) { s.ReplicationJobs = []pvesim.ReplicationJob{{VMID: 9000, Target: "pve3"}} }, nil,
		},
		"export_by_address": {
			func(s *pvesim.Scenario) {
				s.Storages = append(s.Storages, pvesim.Storage{ID: "nas", Type: "nfs", Content: []string{"iso"}, Size: pvesim.GiB, Server: "10.97.0.3"})
			},
			[]power.ReasonType{power.StorageExported},
		},
		"export_by_name": {
			func(s *pvesim.Scenario) {
				s.Storages = append(s.Storages, pvesim.Storage{ID: "nas", Type: "nfs", Content: []string{"iso"}, Size: pvesim.GiB, Server: "pve2.example.com"})
			},
			[]power.ReasonType{power.StorageExported},
		},
		"offline": {
			func(s *pvesim.Scenario) { s.Hosts[1].Offline = true }, []power.ReasonType{power.NotOnline},
		},
		"hidden_guests": {
			func(s *pvesim.Scenario) {
				s.ACLs = append(s.ACLs, pvesim.ACL{Path: "/vms", Role: "NoAccess", User: "kubernetes@pve"})
			},
			[]power.ReasonType{power.FactsUnknown},
		},
		"no_privileges": {
			func(s *pvesim.Scenario) {
				s.Roles[0].Privileges = slices.DeleteFunc(s.Roles[0].Privileges, func(p string) bool { return p == "Sys.Audit" })
			},
			[]power.ReasonType{power.FactsUnknown, power.NoWakeAddress, power.QuorumRequired},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := idleScenario()
			test.change(s)
			decision := decide(t, s)
			var got []power.ReasonType
			for _, reason := range decision.Reasons {
				got = append(got, reason.Type)
			}
			if !slices.Equal(got, test.want) || (decision.Action == power.Sleep) != (test.want == nil) {
				t.Errorf("decision: %s %s", decision.Action, decision.Message())
			}
		})
	}
}

func TestNewRegionReservation(t *testing.T) {
	t.Parallel()
	for name, reservation := range map[string]inventory.Reservation{"host": {Host: "pve2"}, "host_of_the_template": {Host: "pve1", TemplateHost: "pve2"}} {
		reservation.ClaimUID, reservation.Region, reservation.VMID, reservation.Amount = "a", "home", 20007, inventory.Amount{CPUs: 1, MemoryBytes: 1 << 30}
		got := decide(t, idleScenario(), reservation)
		if got.Action != power.Keep || got.Message() != "VMs of this Kubernetes cluster: 20007 (being launched)" {
			t.Errorf("%s: decision: %s %s", name, got.Action, got.Message())
		}
		reservation.Fulfilled = true // its VM was deleted
		if got := decide(t, idleScenario(), reservation); got.Message() != "" {
			t.Errorf("%s: decision for a deleted VM: %s %s", name, got.Action, got.Message())
		}
	}
}

// A VM that waits for capacity keeps no Host awake.
func TestNewRegionParked(t *testing.T) {
	t.Parallel()
	parked := inventory.Reservation{ClaimUID: "a", Region: "home", Host: "pve2", TemplateHost: "pve2", VMID: 20007}
	if got := decide(t, idleScenario(), parked); got.Action != power.Sleep || got.Message() != "" {
		t.Errorf("decision: %s %s", got.Action, got.Message())
	}
}
