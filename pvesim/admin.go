// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// startAdmin starts the admin API if the options enable it. It has no authentication: bind it to a loopback address.
func (s *Simulator) startAdmin(ctx context.Context) error {
	if s.options.AdminListen == "" {
		return nil
	}
	l, err := s.listener(ctx, s.options.AdminListen)
	if err != nil {
		return fmt.Errorf("starting admin API: %w", err)
	}
	s.adminU = "http://" + l.Addr().String()
	s.admin = &http.Server{Handler: s.adminRoutes(), ReadHeaderTimeout: 10 * time.Second}
	server := s.admin
	s.done.Go(func() { _ = server.Serve(l) })
	return nil
}

func (s *Simulator) adminRoutes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /requests", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, s.Requests()) })
	mux.HandleFunc("GET /requests/counts", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, s.RequestCounts()) })
	mux.HandleFunc("DELETE /requests", func(w http.ResponseWriter, _ *http.Request) { s.ResetRequests(); writeJSON(w, nil) })
	mux.HandleFunc("GET /faults", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, s.Faults()) })
	mux.HandleFunc("POST /faults", s.adminAddFault)
	mux.HandleFunc("POST /faults/load", func(w http.ResponseWriter, _ *http.Request) { respond(w, s.AddFaults(LoadFaults())) })
	mux.HandleFunc("DELETE /faults", func(w http.ResponseWriter, _ *http.Request) { s.ClearFaults(); writeJSON(w, nil) })
	mux.HandleFunc("DELETE /faults/{id}", s.adminRemoveFault)
	mux.HandleFunc("POST /hosts/{host}/down", func(w http.ResponseWriter, r *http.Request) {
		respond(w, s.HostDown(r.PathValue("host"), r.FormValue("how")))
	})
	mux.HandleFunc("POST /hosts/{host}/up", func(w http.ResponseWriter, r *http.Request) { respond(w, s.HostUp(r.PathValue("host"))) })
	mux.HandleFunc("DELETE /hosts/{host}", func(w http.ResponseWriter, r *http.Request) { respond(w, s.RemoveHost(r.PathValue("host"))) })
	mux.HandleFunc("POST /hosts/{host}/maintenance", func(w http.ResponseWriter, r *http.Request) {
		respond(w, s.SetMaintenance(r.PathValue("host"), true))
	})
	mux.HandleFunc("DELETE /hosts/{host}/maintenance", func(w http.ResponseWriter, r *http.Request) {
		respond(w, s.SetMaintenance(r.PathValue("host"), false))
	})
	s.endpointRoutes(mux)
	mux.HandleFunc("POST /quorum/lost", func(w http.ResponseWriter, _ *http.Request) { s.SetQuorum(false); writeJSON(w, nil) })
	mux.HandleFunc("POST /quorum/regained", func(w http.ResponseWriter, _ *http.Request) { s.SetQuorum(true); writeJSON(w, nil) })
	mux.HandleFunc("POST /storages/{storage}/full", func(w http.ResponseWriter, r *http.Request) {
		respond(w, s.SetStorageFull(r.PathValue("storage"), true))
	})
	mux.HandleFunc("DELETE /storages/{storage}/full", func(w http.ResponseWriter, r *http.Request) {
		respond(w, s.SetStorageFull(r.PathValue("storage"), false))
	})
	mux.HandleFunc("POST /clock/skew", s.adminSkew)
	mux.HandleFunc("POST /guests/{vmid}/poweroff", func(w http.ResponseWriter, r *http.Request) {
		vmid, err := strconv.Atoi(r.PathValue("vmid"))
		if err == nil {
			err = s.PowerOffGuest(vmid)
		}
		respond(w, err)
	})
	mux.HandleFunc("POST /guests/{vmid}/health", func(w http.ResponseWriter, r *http.Request) {
		vmid, err := strconv.Atoi(r.PathValue("vmid"))
		if err == nil {
			err = s.SetGuestHealth(vmid, Health(r.FormValue("health")))
		}
		respond(w, err)
	})
	mux.HandleFunc("POST /guests/{vmid}/lock", func(w http.ResponseWriter, r *http.Request) {
		vmid, err := strconv.Atoi(r.PathValue("vmid"))
		if err == nil {
			err = s.SetConfigLock(vmid, r.FormValue("lock"))
		}
		respond(w, err)
	})
	s.bootRoutes(mux)
	s.haRoutes(mux)
	s.statusRoutes(mux)
	return mux
}

// bootRoutes adds what happens when a host shuts down and boots.
func (s *Simulator) bootRoutes(mux *http.ServeMux) {
	mux.HandleFunc("POST /hosts/{host}/shutdown", func(w http.ResponseWriter, r *http.Request) { respond(w, s.ShutdownHost(r.PathValue("host"))) })
	mux.HandleFunc("POST /hosts/{host}/boot-failure", func(w http.ResponseWriter, r *http.Request) {
		respond(w, s.SetBootFails(r.PathValue("host"), true))
	})
	mux.HandleFunc("DELETE /hosts/{host}/boot-failure", func(w http.ResponseWriter, r *http.Request) {
		respond(w, s.SetBootFails(r.PathValue("host"), false))
	})
	mux.HandleFunc("POST /hosts/{host}/storages/{storage}/inactive", func(w http.ResponseWriter, r *http.Request) {
		respond(w, s.SetStorageActive(r.PathValue("host"), r.PathValue("storage"), false))
	})
	mux.HandleFunc("DELETE /hosts/{host}/storages/{storage}/inactive", func(w http.ResponseWriter, r *http.Request) {
		respond(w, s.SetStorageActive(r.PathValue("host"), r.PathValue("storage"), true))
	})
}

func (s *Simulator) adminAddFault(w http.ResponseWriter, r *http.Request) {
	var f Fault
	dec := json.NewDecoder(r.Body)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&f); err != nil {
		respond(w, fmt.Errorf("decoding fault: %w", err))
		return
	}
	id, err := s.AddFault(f)
	if err != nil {
		respond(w, err)
		return
	}
	writeJSON(w, map[string]int{"id": id})
}

func (s *Simulator) adminRemoveFault(w http.ResponseWriter, r *http.Request) {
	id, err := strconv.Atoi(r.PathValue("id"))
	if err != nil || !s.RemoveFault(id) {
		err = fmt.Errorf("there is no fault %q", r.PathValue("id"))
	}
	respond(w, err)
}

func (s *Simulator) adminSkew(w http.ResponseWriter, r *http.Request) {
	d, err := time.ParseDuration(r.FormValue("by"))
	if err == nil {
		s.SetClockSkew(d)
	}
	respond(w, err)
}

func respond(w http.ResponseWriter, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	writeJSON(w, nil)
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // a disconnected client is not an error
}
