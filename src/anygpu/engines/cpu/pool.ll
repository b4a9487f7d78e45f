; The pool of threads. @pool_run does a nest, in parts, on all of them; @pool_worker is what each of the others does for
; as long as the process lives. No Python is involved. FUTEX and PAUSE stand for a number and an instruction of the
; architecture.
;
; A run is published by storing its ticket: the number of the run (upper half) and of parts that nobody has taken yet
; (lower half). To take a part is to exchange the ticket for one with a part less. So a thread that wakes up late finds
; no part left, touches nothing, and is not waited for; and one that has a part knows that the fields of the run stay
; what they are until it has counted the part as done.

%pool = type {
  i64, [56 x i8],                  ; 0: the ticket
  i64, i32, [52 x i8],             ; 2: parts done; 3: whether the caller sleeps until all are
  i32, i32, [56 x i8],             ; 5: workers that sleep; 6: whether a run is under way
  ptr, ptr, i64, i64, i64,         ; 8: function, 9: buffers, 10: count, 11: grain, 12: parts
  i32, i32,                        ; 13: workers; 14: threads of BLAS from which on they are no limit
  ptr,                             ; 15: the function that says how many threads BLAS may use, or null
  i32, i32 }                       ; 16: threads of this run, with the caller; 17: whether there are any yet
@pool = external global %pool, align 64

declare i64 @syscall(i64, ...)

define private void @wait(ptr %word, i32 %value) nounwind {
  %r = call i64 (i64, ...) @syscall(i64 FUTEX, ptr %word, i32 128, i32 %value, ptr null, ptr null, i32 0)
  ret void
}

define private void @wake(ptr %word, i32 %most) nounwind {
  %r = call i64 (i64, ...) @syscall(i64 FUTEX, ptr %word, i32 129, i32 %most, ptr null, ptr null, i32 0)
  ret void
}

; Does parts of whatever run there is until none is left to take; returns the number of the run.
define private i32 @take_parts() nounwind {
entry:
  %donep = getelementptr %pool, ptr @pool, i32 0, i32 2
  %waitingp = getelementptr %pool, ptr @pool, i32 0, i32 3
  %fnp = getelementptr %pool, ptr @pool, i32 0, i32 8
  %buffersp = getelementptr %pool, ptr @pool, i32 0, i32 9
  %countp = getelementptr %pool, ptr @pool, i32 0, i32 10
  %grainp = getelementptr %pool, ptr @pool, i32 0, i32 11
  %partsp = getelementptr %pool, ptr @pool, i32 0, i32 12
  br label %look
look:
  %ticket = load atomic i64, ptr @pool acquire, align 8
  %left = and i64 %ticket, 4294967295
  %none = icmp eq i64 %left, 0
  br i1 %none, label %out, label %try
try:
  %less = sub i64 %ticket, 1
  %pair = cmpxchg ptr @pool, i64 %ticket, i64 %less acq_rel monotonic
  %mine = extractvalue { i64, i1 } %pair, 1
  br i1 %mine, label %do, label %look
do:
  %fn = load atomic ptr, ptr %fnp monotonic, align 8
  %buffers = load atomic ptr, ptr %buffersp monotonic, align 8
  %count = load atomic i64, ptr %countp monotonic, align 8
  %grain = load atomic i64, ptr %grainp monotonic, align 8
  %parts = load atomic i64, ptr %partsp monotonic, align 8
  %part = sub i64 %parts, %left
  call void @one_part(ptr %fn, ptr %buffers, i64 %count, i64 %grain, i64 %part)
  %before = atomicrmw add ptr %donep, i64 1 seq_cst
  %done = add i64 %before, 1
  %last = icmp eq i64 %done, %parts
  br i1 %last, label %finish, label %look
finish:
  %waiting = load atomic i32, ptr %waitingp seq_cst, align 4
  %sleeps = icmp ne i32 %waiting, 0
  br i1 %sleeps, label %rouse, label %look
rouse:
  call void @wake(ptr %donep, i32 1)
  br label %look
out:
  %run = lshr i64 %ticket, 32
  %number = trunc i64 %run to i32
  ret i32 %number
}

define private void @one_part(ptr %fn, ptr %buffers, i64 %count, i64 %grain, i64 %part) nounwind {
  %begin = mul i64 %part, %grain
  %next = add i64 %begin, %grain
  %whole = icmp slt i64 %next, %count
  %end = select i1 %whole, i64 %next, i64 %count
  call void %fn(ptr %buffers, i64 %begin, i64 %end, i64 %part)
  ret void
}

; The whole life of a worker, whose number is given in place of a pointer. It looks for a new run for some 50
; microseconds after each, so that the next nest of a program finds it awake, and then sleeps.
define ptr @pool_worker(ptr %argument) nounwind {
entry:
  %runp = getelementptr i8, ptr @pool, i64 4
  %sleepersp = getelementptr %pool, ptr @pool, i32 0, i32 5
  %limitp = getelementptr %pool, ptr @pool, i32 0, i32 16
  %index64 = ptrtoint ptr %argument to i64
  %index = trunc i64 %index64 to i32
  br label %idle
idle:
  %seen = phi i32 [ 0, %entry ], [ %number, %work ], [ %now, %changed ]
  br label %spin
spin:
  %round = phi i32 [ 0, %idle ], [ %rounds, %again ], [ 0, %sleep ]
  %now = load atomic i32, ptr %runp acquire, align 4
  %new = icmp ne i32 %now, %seen
  br i1 %new, label %changed, label %again
again:
  PAUSE
  %rounds = add i32 %round, 1
  %long = icmp ugt i32 %rounds, 1000
  br i1 %long, label %sleep, label %spin
sleep:
  %s = atomicrmw add ptr %sleepersp, i32 1 seq_cst
  call void @wait(ptr %runp, i32 %seen)
  %t = atomicrmw sub ptr %sleepersp, i32 1 seq_cst
  br label %spin
changed:
  %limit = load atomic i32, ptr %limitp monotonic, align 4
  %wanted = icmp slt i32 %index, %limit
  br i1 %wanted, label %work, label %idle
work:
  %number = call i32 @take_parts()
  br label %idle
}

; The threads that a run may use now: all, unless BLAS was told to use fewer (by threadpoolctl, for one).
define private i32 @threads() nounwind {
entry:
  %workersp = getelementptr %pool, ptr @pool, i32 0, i32 13
  %usualp = getelementptr %pool, ptr @pool, i32 0, i32 14
  %blasp = getelementptr %pool, ptr @pool, i32 0, i32 15
  %workers = load atomic i32, ptr %workersp monotonic, align 4
  %all = add i32 %workers, 1
  %blas = load ptr, ptr %blasp
  %unknown = icmp eq ptr %blas, null
  br i1 %unknown, label %out, label %ask
ask:
  %now = call i32 %blas()
  %usual = load i32, ptr %usualp
  %limited = icmp slt i32 %now, %usual
  %few = icmp slt i32 %now, %all
  %both = and i1 %limited, %few
  %limit = select i1 %both, i32 %now, i32 %all
  ret i32 %limit
out:
  ret i32 %all
}

; fn(buffers, begin, end, part) for each part of `grain` rounds of `count`. A pool that is busy with another caller's
; run does not make this one wait: it runs alone, with the same parts.
define void @pool_run(ptr %fn, ptr %buffers, i64 %count, i64 %grain) nounwind {
entry:
  %donep = getelementptr %pool, ptr @pool, i32 0, i32 2
  %waitingp = getelementptr %pool, ptr @pool, i32 0, i32 3
  %sleepersp = getelementptr %pool, ptr @pool, i32 0, i32 5
  %busyp = getelementptr %pool, ptr @pool, i32 0, i32 6
  %runp = getelementptr i8, ptr @pool, i64 4
  %up = add i64 %count, %grain
  %most = sub i64 %up, 1
  %parts = sdiv i64 %most, %grain
  %several = icmp ugt i64 %parts, 1
  %countable = icmp ult i64 %parts, 2147483648
  %cut = and i1 %several, %countable
  br i1 %cut, label %ask, label %alone
ask:
  %threads = call i32 @threads()
  %many = icmp sgt i32 %threads, 1
  br i1 %many, label %claim, label %alone
claim:
  %claimed = cmpxchg ptr %busyp, i32 0, i32 1 acq_rel monotonic
  %free = extractvalue { i32, i1 } %claimed, 1
  br i1 %free, label %publish, label %alone
alone:
  br label %next
next:
  %part = phi i64 [ 0, %alone ], [ %following, %each ]
  %more = icmp slt i64 %part, %parts
  br i1 %more, label %each, label %out
each:
  call void @one_part(ptr %fn, ptr %buffers, i64 %count, i64 %grain, i64 %part)
  %following = add i64 %part, 1
  br label %next
publish:
  %fnp = getelementptr %pool, ptr @pool, i32 0, i32 8
  store atomic ptr %fn, ptr %fnp monotonic, align 8
  %buffersp = getelementptr %pool, ptr @pool, i32 0, i32 9
  store atomic ptr %buffers, ptr %buffersp monotonic, align 8
  %countp = getelementptr %pool, ptr @pool, i32 0, i32 10
  store atomic i64 %count, ptr %countp monotonic, align 8
  %grainp = getelementptr %pool, ptr @pool, i32 0, i32 11
  store atomic i64 %grain, ptr %grainp monotonic, align 8
  %partsp = getelementptr %pool, ptr @pool, i32 0, i32 12
  store atomic i64 %parts, ptr %partsp monotonic, align 8
  %limitp = getelementptr %pool, ptr @pool, i32 0, i32 16
  store atomic i32 %threads, ptr %limitp monotonic, align 4
  store atomic i64 0, ptr %donep monotonic, align 8
  %old = load atomic i32, ptr %runp monotonic, align 4
  %number = add i32 %old, 1
  %number64 = zext i32 %number to i64
  %upper = shl i64 %number64, 32
  %ticket = or i64 %upper, %parts
  store atomic i64 %ticket, ptr @pool seq_cst, align 8
  %sleepers = load atomic i32, ptr %sleepersp seq_cst, align 4
  %asleep = icmp ne i32 %sleepers, 0
  br i1 %asleep, label %rouse, label %join
rouse:
  %others = trunc i64 %parts to i32
  call void @wake(ptr %runp, i32 %others)
  br label %join
join:
  %seen = call i32 @take_parts()
  br label %spin
spin:
  %round = phi i32 [ 0, %join ], [ %rounds, %again ]
  %done = load atomic i64, ptr %donep acquire, align 8
  %ready = icmp eq i64 %done, %parts
  br i1 %ready, label %release, label %again
again:
  PAUSE
  %rounds = add i32 %round, 1
  %long = icmp ugt i32 %rounds, 1000
  br i1 %long, label %settle, label %spin
settle:
  store atomic i32 1, ptr %waitingp seq_cst, align 4
  br label %check
check:
  %now = load atomic i64, ptr %donep seq_cst, align 8
  %all = icmp eq i64 %now, %parts
  br i1 %all, label %rise, label %sleep
sleep:
  %low = trunc i64 %now to i32
  call void @wait(ptr %donep, i32 %low)
  br label %check
rise:
  store atomic i32 0, ptr %waitingp seq_cst, align 4
  br label %release
release:
  store atomic i32 0, ptr %busyp release, align 4
  br label %out
out:
  ret void
}
