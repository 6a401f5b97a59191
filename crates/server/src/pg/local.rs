//! A socket in the file system, for clients on the same machine: less work for both than a connection over loopback.
//!
//! Its name is that of PostgreSQL's, so that drivers find it by its folder: `psql -h FOLDER -p PORT`. Whoever can reach
//! the folder can connect, and says who it is like anybody else. It is not encrypted, for nobody else can listen.

use crate::config::{Config, Local};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tokio::net::UnixListener;

/// What the system can hold of a socket's path.
const PATH_MAX: usize = 107;

/// A socket that is listened on. Its file goes with it.
#[derive(Debug)]
pub(crate) struct LocalSocket {
    pub(super) listener: UnixListener,
    path: PathBuf,
}

impl Drop for LocalSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl LocalSocket {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Listens where the configuration says. The socket that nobody has asked for is not worth failing for.
    pub(crate) fn open(config: &Config, port: u16) -> Result<Option<LocalSocket>, String> {
        match &config.local {
            Local::Off => Ok(None),
            Local::Folder(folder) => bind(folder, port).map(Some),
            // Who wants TLS from this machine, too, has to ask for a way around it.
            Local::Unsaid if config.require_tls => Ok(None),
            Local::Unsaid => Ok(bind(&config.data, port).inspect_err(|fault| tracing::warn!("{fault}")).ok()),
        }
    }
}

fn bind(folder: &Path, port: u16) -> Result<LocalSocket, String> {
    let folder =
        std::path::absolute(folder).map_err(|fault| format!("cannot listen in {}: {fault}", folder.display()))?;
    let path = folder.join(format!(".s.PGSQL.{port}"));
    let shown = path.display();
    if path.as_os_str().len() > PATH_MAX {
        return Err(format!("cannot listen on {shown}: the path is longer than {PATH_MAX} bytes"));
    }
    remove_left_over(&path).map_err(|fault| format!("cannot listen on {shown}: {fault}"))?;
    let listen = || {
        let listener = UnixListener::bind(&path)?;
        // The folder says who may come, as with PostgreSQL's.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777))?;
        Ok(listener)
    };
    let listener = listen().map_err(|fault: io::Error| format!("cannot listen on {shown}: {fault}"))?;
    Ok(LocalSocket { listener, path })
}

/// A server that was killed leaves its file behind, on which nobody answers.
fn remove_left_over(path: &Path) -> io::Result<()> {
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => Err(io::Error::new(io::ErrorKind::AddrInUse, "another server listens there")),
        Err(fault) if fault.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        Err(_) => Ok(()),
    }
}
