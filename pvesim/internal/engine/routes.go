// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"maps"
	"slices"
)

// handlers maps the methods of schema/served.txt to their implementation.
func (e *Engine) handlers() map[string]Handler {
	all := map[string]Handler{}
	for _, group := range []map[string]Handler{
		e.clusterHandlers(), e.accessHandlers(), e.hostHandlers(), e.storageHandlers(), e.qemuHandlers(), e.firewallHandlers(),
		e.haHandlers(), e.zones.handlers("/cluster/sdn/zones"), e.vnets.handlers("/cluster/sdn/vnets"),
		e.mappings["pci"].handlers("/cluster/mapping/pci"), e.mappings["usb"].handlers("/cluster/mapping/usb"),
		e.mappings["dir"].handlers("/cluster/mapping/dir"),
	} {
		maps.Copy(all, group)
	}
	return all
}

// Served lists the methods that the engine implements.
func (e *Engine) Served() []string { return slices.Sorted(maps.Keys(e.routes)) }

func (e *Engine) clusterHandlers() map[string]Handler {
	return map[string]Handler{
		"GET /version":                          e.getVersion,
		"GET /cluster/resources":                e.getResources,
		"GET /cluster/status":                   e.getClusterStatus,
		"GET /cluster/config/nodes":             e.getConfigNodes,
		"GET /cluster/nextid":                   e.getNextID,
		"GET /cluster/options":                  e.getOptions,
		"PUT /cluster/options":                  e.putOptions,
		"GET /cluster/tasks":                    e.getClusterTasks,
		"GET /cluster/ha/resources":             e.getHAResources,
		"POST /cluster/ha/resources":            e.postHAResource,
		"GET /cluster/ha/resources/{sid}":       e.getHAResource,
		"PUT /cluster/ha/resources/{sid}":       e.putHAResource,
		"DELETE /cluster/ha/resources/{sid}":    e.deleteHAResource,
		"GET /cluster/ha/status/current":        e.getHAStatus,
		"GET /cluster/ha/status/manager_status": e.getHAManagerStatus,
		"GET /cluster":                          index("name", "resources", "status", "nextid", "options", "tasks", "ha", "firewall", "mapping", "sdn"),
		"GET /cluster/backup":                   emptyList,
		"GET /cluster/log":                      emptyList,
		"GET /cluster/replication":              emptyList,
		"GET /cluster/mapping":                  index("name", "pci", "usb", "dir"),
		"PUT /cluster/sdn":                      e.putSDN,
		"GET /cluster/sdn/ipams":                e.getIPAMs,
		"GET /cluster/sdn/ipams/{ipam}/status":  e.getIPAMStatus,
		"GET /pools":                            e.getPools,
		"POST /pools":                           e.postPool,
		"PUT /pools":                            e.putPool,
		"DELETE /pools":                         e.deletePool,
		"GET /pools/{poolid}":                   e.getPool,
		"PUT /pools/{poolid}":                   e.putPool,
		"DELETE /pools/{poolid}":                e.deletePool,
	}
}

func (e *Engine) accessHandlers() map[string]Handler {
	return map[string]Handler{
		"GET /access/permissions":                       e.getPermissions,
		"GET /access/roles":                             e.getRoles,
		"POST /access/roles":                            e.postRole,
		"GET /access/roles/{roleid}":                    e.getRole,
		"PUT /access/roles/{roleid}":                    e.putRole,
		"DELETE /access/roles/{roleid}":                 e.deleteRole,
		"POST /access/ticket":                           e.postTicket,
		"GET /access/users":                             e.getUsers,
		"POST /access/users":                            e.postUser,
		"GET /access/users/{userid}":                    e.getUser,
		"PUT /access/users/{userid}":                    e.putUser,
		"DELETE /access/users/{userid}":                 e.deleteUser,
		"GET /access/users/{userid}/token":              e.getTokens,
		"GET /access/users/{userid}/token/{tokenid}":    e.getToken,
		"POST /access/users/{userid}/token/{tokenid}":   e.postToken,
		"PUT /access/users/{userid}/token/{tokenid}":    e.putToken,
		"DELETE /access/users/{userid}/token/{tokenid}": e.deleteToken,
		"GET /access/acl":                               e.getACL,
		"PUT /access/acl":                               e.putACL,
		"GET /access/domains":                           e.getDomains,
		"GET /access/groups":                            e.getUserGroups,
		"POST /access/groups":                           e.postUserGroup,
		"GET /access/groups/{groupid}":                  e.getUserGroup,
		"PUT /access/groups/{groupid}":                  e.putUserGroup,
		"DELETE /access/groups/{groupid}":               e.deleteUserGroup,
		"PUT /access/password":                          e.putPassword,
		"GET /access":                                   index("subdir", "users", "groups", "roles", "acl", "domains", "ticket", "permissions"),
	}
}

func (e *Engine) hostHandlers() map[string]Handler {
	return map[string]Handler{
		"GET /nodes":                        e.getHosts,
		"GET /nodes/{node}":                 index("name", "qemu", "lxc", "storage", "status", "tasks", "network", "firewall", "version"),
		"GET /nodes/{node}/network/{iface}": e.getInterface,
		"GET /nodes/{node}/subscription": func(context.Context, *Request) (Response, error) {
			return Response{Data: row{"status": "notfound", "message": "There is no subscription key"}}, nil
		},
		"GET /nodes/{node}/status":                     e.getHostStatus,
		"GET /nodes/{node}/version":                    e.getVersion,
		"GET /nodes/{node}/time":                       e.getHostTime,
		"GET /nodes/{node}/dns":                        e.getDNS,
		"GET /nodes/{node}/network":                    e.getNetwork,
		"GET /nodes/{node}/hardware/pci":               e.getPCI,
		"GET /nodes/{node}/capabilities/qemu/cpu":      e.getCPUModels,
		"GET /nodes/{node}/capabilities/qemu/machines": e.getMachines,
		"GET /nodes/{node}/rrddata":                    e.getHostRRD,
		"GET /nodes/{node}/sdn/zones":                  emptyList,
		"GET /nodes/{node}/sdn/zones/{zone}/content":   e.getZoneContent,
		"GET /nodes/{node}/query-url-metadata":         e.getURLMetadata,
		"GET /nodes/{node}/tasks":                      e.getTasks,
		"GET /nodes/{node}/tasks/{upid}":               e.getTaskIndex,
		"DELETE /nodes/{node}/tasks/{upid}":            e.deleteTask,
		"GET /nodes/{node}/tasks/{upid}/log":           e.getTaskLog,
		"GET /nodes/{node}/tasks/{upid}/status":        e.getTaskStatus,
		"GET /nodes/{node}/lxc":                        e.getLXCList,
		"GET /nodes/{node}/lxc/{vmid}/config":          e.getLXCConfig,
	}
}

func (e *Engine) storageHandlers() map[string]Handler {
	return map[string]Handler{
		"GET /storage":                                            e.getDefinitions,
		"POST /storage":                                           e.postDefinition,
		"GET /storage/{storage}":                                  e.getDefinition,
		"PUT /storage/{storage}":                                  e.putDefinition,
		"DELETE /storage/{storage}":                               e.deleteDefinition,
		"GET /nodes/{node}/storage/{storage}":                     index("subdir", "content", "status", "upload", "download-url"),
		"GET /nodes/{node}/storage":                               e.getStorages,
		"GET /nodes/{node}/storage/{storage}/status":              e.getStorageStatus,
		"GET /nodes/{node}/storage/{storage}/content":             e.getContent,
		"POST /nodes/{node}/storage/{storage}/content":            e.postContent,
		"GET /nodes/{node}/storage/{storage}/content/{volume}":    e.getVolume,
		"DELETE /nodes/{node}/storage/{storage}/content/{volume}": e.deleteVolume,
		"POST /nodes/{node}/storage/{storage}/upload":             e.postUpload,
		"POST /nodes/{node}/storage/{storage}/download-url":       e.postDownload,
	}
}

func (e *Engine) qemuHandlers() map[string]Handler {
	const vm = " /nodes/{node}/qemu/{vmid}"
	return map[string]Handler{
		"GET /nodes/{node}/qemu":                      e.getQemuList,
		"POST /nodes/{node}/qemu":                     e.postQemu,
		"GET" + vm:                                    index("subdir", "config", "pending", "status", "firewall", "agent", "snapshot"),
		"DELETE" + vm:                                 e.deleteQemu,
		"GET" + vm + "/status":                        index("subdir", "current", "start", "stop", "reset", "shutdown", "suspend", "reboot"),
		"GET" + vm + "/status/current":                e.getStatus,
		"POST" + vm + "/status/start":                 e.postStart,
		"POST" + vm + "/status/stop":                  e.postStop,
		"POST" + vm + "/status/shutdown":              e.postShutdown,
		"POST" + vm + "/status/reboot":                e.postReboot,
		"POST" + vm + "/status/reset":                 e.whileRunning("qmreset", e.resetVM),
		"POST" + vm + "/status/suspend":               e.whileRunning("qmpause", func(g *Guest) { g.paused = true }),
		"POST" + vm + "/status/resume":                e.whileRunning("qmresume", func(g *Guest) { g.paused = false }),
		"GET" + vm + "/config":                        e.getConfig,
		"PUT" + vm + "/config":                        e.putConfig,
		"POST" + vm + "/config":                       e.postConfig,
		"GET" + vm + "/pending":                       e.getPending,
		"PUT" + vm + "/resize":                        e.putResize,
		"PUT" + vm + "/unlink":                        e.putUnlink,
		"POST" + vm + "/clone":                        e.postClone,
		"POST" + vm + "/template":                     e.postTemplate,
		"GET" + vm + "/feature":                       e.getFeature,
		"GET" + vm + "/migrate":                       e.getMigrate,
		"POST" + vm + "/migrate":                      e.postMigrate,
		"POST" + vm + "/move_disk":                    e.postMoveDisk,
		"GET" + vm + "/snapshot/{snapname}/config":    e.getSnapshotConfig,
		"POST" + vm + "/snapshot/{snapname}/rollback": e.postRollback,
		"GET" + vm + "/snapshot":                      e.getSnapshots,
		"POST" + vm + "/snapshot":                     e.postSnapshot,
		"DELETE" + vm + "/snapshot/{snapname}":        e.deleteSnapshot,
		"GET" + vm + "/cloudinit":                     e.getCloudInit,
		"PUT" + vm + "/cloudinit":                     e.putCloudInit,
		"GET" + vm + "/cloudinit/dump":                e.getCloudInitDump,
		"POST" + vm + "/agent/ping":                   e.agentCall(func(*Agent) any { return row{} }),
		"GET" + vm + "/agent/info":                    e.agentCall(func(*Agent) any { return row{"version": "9.2.0"} }),
		"GET" + vm + "/agent/get-osinfo":              e.agentCall(func(a *Agent) any { return a.OS }),
		"GET" + vm + "/agent/get-host-name":           e.agentCall(func(a *Agent) any { return row{"host-name": a.Hostname} }),
		"GET" + vm + "/agent/network-get-interfaces":  e.agentCall(agentInterfaces),
	}
}

func (e *Engine) firewallHandlers() map[string]Handler {
	const groups = " /cluster/firewall/groups"
	out := map[string]Handler{
		"GET /cluster/firewall":              index("name", "rules", "options", "groups", "ipset", "aliases"),
		"GET" + groups:                       e.getGroups,
		"POST" + groups:                      e.postGroup,
		"GET" + groups + "/{group}":          e.getRules,
		"POST" + groups + "/{group}":         e.postRule,
		"DELETE" + groups + "/{group}":       e.deleteGroup,
		"GET" + groups + "/{group}/{pos}":    e.getRule,
		"PUT" + groups + "/{group}/{pos}":    e.putRule,
		"DELETE" + groups + "/{group}/{pos}": e.deleteRule,
		"GET /nodes/{node}/firewall/options": e.getFirewallOptions,
		"PUT /nodes/{node}/firewall/options": e.putFirewallOptions,
		"GET /nodes/{node}/firewall/rules":   e.getRules,
	}
	for _, at := range []string{" /cluster/firewall", " /nodes/{node}/qemu/{vmid}/firewall"} {
		maps.Copy(out, map[string]Handler{
			"GET" + at + "/options":                e.getFirewallOptions,
			"PUT" + at + "/options":                e.putFirewallOptions,
			"GET" + at + "/rules":                  e.getRules,
			"POST" + at + "/rules":                 e.postRule,
			"GET" + at + "/rules/{pos}":            e.getRule,
			"PUT" + at + "/rules/{pos}":            e.putRule,
			"DELETE" + at + "/rules/{pos}":         e.deleteRule,
			"GET" + at + "/ipset":                  e.getIPSets,
			"POST" + at + "/ipset":                 e.postIPSet,
			"GET" + at + "/ipset/{name}":           e.getIPSet,
			"POST" + at + "/ipset/{name}":          e.postIPSetEntry,
			"DELETE" + at + "/ipset/{name}":        e.deleteIPSet,
			"GET" + at + "/ipset/{name}/{cidr}":    e.getIPSetEntry,
			"PUT" + at + "/ipset/{name}/{cidr}":    e.putIPSetEntry,
			"DELETE" + at + "/ipset/{name}/{cidr}": e.deleteIPSetEntry,
			"GET" + at + "/aliases":                e.getAliases,
			"POST" + at + "/aliases":               e.postAlias,
			"GET" + at + "/aliases/{name}":         e.getAlias,
			"PUT" + at + "/aliases/{name}":         e.putAlias,
			"DELETE" + at + "/aliases/{name}":      e.deleteAlias,
		})
	}
	return out
}
