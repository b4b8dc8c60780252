// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"
)

// PowerClient turns Hosts off and on, and reads what decides whether a Host may be turned
// off.
type PowerClient interface {
	// Shutdown shuts a Host down. Proxmox stops its guests first. It requires
	// Sys.PowerMgmt on the Host. The Host is still online when the call returns, and no
	// task represents the shutdown.
	Shutdown(ctx context.Context, host string) error
	// Wake sends a Wake-on-LAN packet to a Host and returns the MAC address that it was
	// sent to. It requires Sys.PowerMgmt on the Host, another Host that responds, and a
	// MAC address in the Host's config. The packet has no effect until the Host is off.
	Wake(ctx context.Context, host string) (mac string, err error)
	// WakeAddress returns the MAC address for Wake in the config of a Host, which must be
	// online; empty if it has none. It requires Sys.Audit on /.
	WakeAddress(ctx context.Context, host string) (mac string, err error)
	// Votes returns the votes for quorum, with two calls. It requires Sys.Audit on /.
	Votes(ctx context.Context) (Votes, error)
	// CephDaemons returns the Ceph daemons by Host. It returns ErrNotFound if Ceph is not
	// installed on the Host that responds: other Hosts can have daemons nevertheless. It
	// requires Sys.Audit or Datastore.Audit on /.
	CephDaemons(ctx context.Context) (map[string][]string, error)
	// HasCeph reports whether Ceph is set up on a Host. It requires the same as
	// CephDaemons.
	HasCeph(ctx context.Context, host string) (bool, error)
	// HAPreferences returns the HA rules, or before Proxmox VE 9 the HA groups, that name
	// a Host, by Host. It requires Sys.Audit on /.
	HAPreferences(ctx context.Context, version Version) (map[string][]string, error)
	// BackupJobs returns the enabled backup jobs. It requires Sys.Audit on /.
	BackupJobs(ctx context.Context) ([]BackupJob, error)
	// ReplicationJobs returns the enabled replication jobs of the guests that the user may
	// audit.
	ReplicationJobs(ctx context.Context) ([]ReplicationJob, error)
	// AllRunningTasks returns the running tasks of all Hosts. Without Sys.Audit on / they
	// are those of the user only.
	AllRunningTasks(ctx context.Context) ([]TaskStatus, error)
	// StorageServers returns the servers of network storages by name of the storage.
	StorageServers(ctx context.Context) (map[string]string, error)
	// URLHosts returns the names or addresses in the URLs of the cloud config. It makes no
	// call.
	URLHosts() []string
	// HostAddresses returns the address of each Host that is online. It requires Sys.Audit
	// on /.
	HostAddresses(ctx context.Context) (map[string]string, error)
}

type powerClient struct{ *caller }

func (c powerClient) Shutdown(ctx context.Context, host string) error {
	if err := c.post(ctx, at("/nodes/{node}/status", host), parameters{"command": "shutdown"}, nil); err != nil {
		return fmt.Errorf("shutting host %s down: %w", host, err)
	}
	return nil
}

func (c powerClient) Wake(ctx context.Context, host string) (string, error) {
	var mac string
	if err := c.post(ctx, at("/nodes/{node}/wakeonlan", host), nil, &mac); err != nil {
		return "", fmt.Errorf("waking host %s: %w", host, err)
	}
	return mac, nil
}

func (c powerClient) WakeAddress(ctx context.Context, host string) (string, error) {
	var out struct {
		WakeOnLAN string `json:"wakeonlan"`
	}
	if err := c.get(ctx, at("/nodes/{node}/config", host).with("property", "wakeonlan"), &out); err != nil {
		return "", fmt.Errorf("reading the config of host %s: %w", host, err)
	}
	return ParseProperties(out.WakeOnLAN).defaultValue("mac"), nil
}

// Votes are the votes for quorum of a Cluster.
type Votes struct {
	// Hosts are the votes by Host; empty for a standalone Host.
	Hosts map[string]int
	// QDevice are the votes of the external vote daemon, 0 without one. They count only
	// while QDeviceConnected.
	QDevice          int
	QDeviceConnected bool
}

// qdeviceVotes are the votes of the vote daemon by the name of its algorithm, which
// corosync-qdevice-tool prints.
var qdeviceVotes = map[string]func(hosts int) int{
	"fifty-fifty split": func(int) int { return 1 },
	"lms":               func(hosts int) int { return hosts - 1 },
	"2 node lms":        func(hosts int) int { return hosts - 1 },
}

// Votes derives the votes of the vote daemon from its algorithm, because no call returns
// them. It fails if it does not know the algorithm.
func (c powerClient) Votes(ctx context.Context) (Votes, error) {
	var rows []struct {
		Node  string  `json:"node"`
		Votes numeric `json:"quorum_votes"`
	}
	if err := c.get(ctx, at("/cluster/config/nodes"), &rows); err != nil {
		return Votes{}, fmt.Errorf("reading the votes of the hosts: %w", err)
	}
	var device struct{ Algorithm, State string }
	if err := c.get(ctx, at("/cluster/config/qdevice"), &device); err != nil {
		return Votes{}, fmt.Errorf("reading the status of the QDevice: %w", err)
	}
	votes := Votes{Hosts: make(map[string]int, len(rows)), QDeviceConnected: device.State == "Connected"}
	for _, row := range rows {
		votes.Hosts[row.Node] = int(row.Votes.whole())
	}
	if device.Algorithm == "" && device.State == "" {
		return votes, nil // there is none
	}
	count, known := qdeviceVotes[strings.ToLower(device.Algorithm)]
	if !known {
		return Votes{}, fmt.Errorf("reading the status of the QDevice: found algorithm %q, want Fifty-Fifty split or LMS", device.Algorithm)
	}
	votes.QDevice = count(len(rows))
	return votes, nil
}

// cephMissing are messages of a Host on which Ceph is not set up.
var cephMissing = []string{"binary not installed", "not initialized"}

// cephError replaces the error of a Host without Ceph by ErrNotFound.
func cephError(err error) error {
	if errors.Is(err, ErrFailed) && slices.ContainsFunc(cephMissing, func(text string) bool { return strings.Contains(err.Error(), text) }) {
		return &failure{kind: ErrNotFound, text: "Ceph is not set up on the host"}
	}
	return err
}

func (c powerClient) CephDaemons(ctx context.Context) (map[string][]string, error) {
	type daemon struct {
		Hostname string `json:"hostname"`
	}
	var out struct {
		Mon, Mgr, Mds map[string]daemon
		OSD           []struct {
			daemon
			ID numeric `json:"id"`
		}
	}
	if err := c.get(ctx, at("/cluster/ceph/metadata"), &out); err != nil {
		return nil, fmt.Errorf("reading the Ceph daemons: %w", cephError(err))
	}
	daemons := map[string][]string{}
	for kind, byName := range map[string]map[string]daemon{"mon": out.Mon, "mgr": out.Mgr, "mds": out.Mds} {
		for name, d := range byName {
			id, host, _ := strings.Cut(name, "@")
			if d.Hostname != "" {
				host = d.Hostname
			}
			daemons[host] = append(daemons[host], kind+"."+id)
		}
	}
	for _, osd := range out.OSD {
		daemons[osd.Hostname] = append(daemons[osd.Hostname], fmt.Sprintf("osd.%d", osd.ID.whole()))
	}
	for _, names := range daemons {
		slices.Sort(names)
	}
	return daemons, nil
}

func (c powerClient) HasCeph(ctx context.Context, host string) (bool, error) {
	err := cephError(c.get(ctx, at("/nodes/{node}/ceph/status", host), nil))
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, ErrNotFound):
		return false, nil
	}
	return false, fmt.Errorf("reading the Ceph status of host %s: %w", host, err)
}

func (c powerClient) HAPreferences(ctx context.Context, version Version) (map[string][]string, error) {
	var rows []struct {
		Rule    string  `json:"rule"`
		Group   string  `json:"group"`
		Nodes   string  `json:"nodes"`
		Disable numeric `json:"disable"`
	}
	e := at("/cluster/ha/groups")
	if version.AtLeast(9, 0) {
		e = at("/cluster/ha/rules")
	}
	if err := c.get(ctx, e, &rows); err != nil {
		return nil, fmt.Errorf("reading the HA rules: %w", err)
	}
	preferences := map[string][]string{}
	for _, row := range rows {
		if row.Disable.isSet() {
			continue
		}
		for entry := range strings.SplitSeq(row.Nodes, ",") {
			if host, _, _ := strings.Cut(entry, ":"); host != "" {
				preferences[host] = append(preferences[host], row.Rule+row.Group)
			}
		}
	}
	return preferences, nil
}

// BackupJob is an enabled backup job.
type BackupJob struct {
	ID string
	// Host is empty if each Host backs up its own guests.
	Host string
	// Pool is the resource pool whose guests it backs up; empty if it is not limited to one.
	Pool string
	// VMs are the guests of the job; empty if it backs up those of a Pool or all.
	VMs []int
	// Excluded are guests that it does not back up although it backs up all.
	Excluded []int
	// NextRun is when it is due; zero if Proxmox does not report it.
	NextRun time.Time
}

// Includes reports whether the job backs up a guest. Proxmox ignores exclusions from a resource
// pool.
func (j BackupJob) Includes(guest GuestRow) bool {
	switch {
	case j.Host != "" && j.Host != guest.Host:
		return false
	case j.Pool != "":
		return j.Pool == guest.Pool
	case len(j.VMs) > 0:
		return slices.Contains(j.VMs, guest.VMID)
	}
	return !slices.Contains(j.Excluded, guest.VMID)
}

func (c powerClient) BackupJobs(ctx context.Context) ([]BackupJob, error) {
	var rows []struct {
		ID      string   `json:"id"`
		Node    string   `json:"node"`
		Pool    string   `json:"pool"`
		VMID    string   `json:"vmid"`
		Exclude string   `json:"exclude"`
		NextRun numeric  `json:"next-run"`
		Enabled *numeric `json:"enabled"`
	}
	if err := c.get(ctx, at("/cluster/backup"), &rows); err != nil {
		return nil, fmt.Errorf("reading the backup jobs: %w", err)
	}
	var jobs []BackupJob
	for _, row := range rows {
		if row.Enabled != nil && !row.Enabled.isSet() {
			continue
		}
		job := BackupJob{ID: row.ID, Host: row.Node, Pool: row.Pool, VMs: parseVMIDs(row.VMID), Excluded: parseVMIDs(row.Exclude)}
		if row.NextRun > 0 {
			job.NextRun = time.Unix(row.NextRun.whole(), 0)
		}
		jobs = append(jobs, job)
	}
	return jobs, nil
}

// parseVMIDs returns the VMIDs in a list, whose separators are those that Proxmox accepts.
func parseVMIDs(list string) []int {
	var vmids []int
	for text := range strings.FieldsFuncSeq(list, func(r rune) bool { return strings.ContainsRune(",; \t\n", r) }) {
		if vmid := parseNumber(text); vmid > 0 {
			vmids = append(vmids, vmid)
		}
	}
	return vmids
}

// ReplicationJob is an enabled replication job.
type ReplicationJob struct {
	ID     string
	VMID   int
	Target string // Host
}

func (c powerClient) ReplicationJobs(ctx context.Context) ([]ReplicationJob, error) {
	var rows []struct {
		ID      string  `json:"id"`
		Guest   numeric `json:"guest"`
		Target  string  `json:"target"`
		Disable numeric `json:"disable"`
	}
	if err := c.get(ctx, at("/cluster/replication"), &rows); err != nil {
		return nil, fmt.Errorf("reading the replication jobs: %w", err)
	}
	var jobs []ReplicationJob
	for _, row := range rows {
		if !row.Disable.isSet() {
			jobs = append(jobs, ReplicationJob{ID: row.ID, VMID: int(row.Guest.whole()), Target: row.Target})
		}
	}
	return jobs, nil
}

func (c powerClient) AllRunningTasks(ctx context.Context) ([]TaskStatus, error) {
	tasks, err := taskClient(c).tasks(ctx, at("/cluster/tasks"))
	if err != nil {
		return nil, fmt.Errorf("listing the tasks of all hosts: %w", err)
	}
	return slices.DeleteFunc(tasks, TaskStatus.Ended), nil
}

func (c powerClient) StorageServers(ctx context.Context) (map[string]string, error) {
	var rows []struct{ Storage, Server, Portal string }
	if err := c.get(ctx, at("/storage"), &rows); err != nil {
		return nil, fmt.Errorf("reading the definitions of storages: %w", err)
	}
	servers := map[string]string{}
	for _, row := range rows {
		portal := row.Portal // of iSCSI, with or without a port
		if host, _, err := net.SplitHostPort(portal); err == nil {
			portal = host
		}
		if server := cmp.Or(row.Server, portal); server != "" {
			servers[row.Storage] = server
		}
	}
	return servers, nil
}

func (c powerClient) HostAddresses(ctx context.Context) (map[string]string, error) {
	var rows []struct{ Type, Name, IP string }
	if err := c.get(ctx, at("/cluster/status"), &rows); err != nil {
		return nil, fmt.Errorf("reading the addresses of the hosts: %w", err)
	}
	addresses := map[string]string{}
	for _, row := range rows {
		if row.Type == "node" && row.IP != "" {
			addresses[row.Name] = row.IP
		}
	}
	return addresses, nil
}
